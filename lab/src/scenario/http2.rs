//! HTTP/2 at its edges: h2spec's cases through the chain, which must end as they do directly.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde_json::json;

use super::streams::SOON;
use super::{Case, Figure, Pace, Scenario};
use crate::apps;
use crate::result::Bound;
use crate::world::{Options, Way, World};

/// How often each way: what ends in two ways directly may do so through the chain.
const PASSES: u32 = 2;
/// How often sections are tried again in which a case has ended as never without the chain.
const AGAIN: u32 = 20;
/// Seconds that h2spec waits for an answer. Its default of 2 is short on a busy machine.
const ANSWER: &str = "3";

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "h2spec",
    promise: "P1",
    what: "h2spec, which breaks HTTP/2 in every way that the specification names, against the server itself and \
               through a mapping that is watched and explains (`explain: on`), twice each way. Each case ends with the \
               same frames and the same close as it does without the chain: directly, or by plain TCP proxies that \
               pass on small pieces, as servers race with what arrives in more than one.",
    figures: &[
        figure("cases", "cases", Bound::AtLeast(145.0)),
        figure("passed", "that the server passes directly", Bound::None),
        figure("differ", "that end through the chain as never without it", Bound::AtMost(0.0)),
        figure("which", "those", Bound::None),
    ],
    ways: &[Way::Tcp],
    speaks_grpc: true,
    pace: Pace::Waits,
    runs: 1,
    seconds: 170,
    smoke: false,
    open: None,
    run: h2spec,
}];

const fn figure(id: &'static str, what: &'static str, bound: Bound) -> Figure {
    Figure { id, what, unit: "", article: "", bound }
}

/// How each case ended in each pass.
type Ends = BTreeMap<String, Vec<String>>;

fn h2spec(case: &mut Case<'_>) -> anyhow::Result<()> {
    let program = apps::h2spec()?;
    let language = case.language()?;
    let mut world = case.world_with(Options { mapping_keys: ", explain: on", ..Options::plain(case.way) })?;
    world.start_server(&language)?;
    let small = small_pieces(&mut world)?;
    let (served, mapping) = (world.served(), world.target());
    let world = &world;
    let run = |host: &'static str, address: &str, only: &str| one(world, &program, (host, address), only);
    let passes = |host: &'static str, address: &str| -> anyhow::Result<Ends> {
        let mut ends = Ends::new();
        (0..PASSES).try_for_each(|_| run(host, address, "").map(|pass| add(&mut ends, pass)))?;
        Ok(ends)
    };
    let (direct, pieces, chain) = std::thread::scope(|scope| {
        let direct = scope.spawn(|| passes("db", &served));
        let pieces = scope.spawn(|| passes("relay", &small));
        let chain = passes("web", &mapping);
        (direct.join(), pieces.join(), chain)
    });
    let (Ok(direct), Ok(pieces)) = (direct, pieces) else { bail!("h2spec without the chain") };
    let (direct, chain) = (direct?, chain?);
    if direct.keys().ne(chain.keys()) {
        bail!("{} cases directly, {} through the chain", direct.len(), chain.len());
    }
    case.count("cases", direct.len());
    case.count("passed", direct.values().filter(|ends| ends.iter().all(|end| end == PASSED)).count());
    let mut reference = direct;
    pieces?.into_iter().for_each(|(name, ends)| reference.entry(name).or_default().extend(ends));
    // Races in the server: seldom ends are looked for longer.
    for _ in 0..AGAIN {
        let sections: BTreeSet<String> =
            differing(&reference, &chain).iter().filter_map(|(name, _)| section(name)).collect();
        for section in sections {
            add(&mut reference, run("db", &served, &section)?);
            add(&mut reference, run("relay", &small, &section)?);
        }
    }
    let differ: Vec<String> = differing(&reference, &chain)
        .into_iter()
        .map(|(name, end)| {
            format!("{name}: without the chain {:?}, through it {end:?}", reference[name].first())
        })
        .collect();
    case.count("differ", differ.len());
    case.word("which", if differ.is_empty() { "none".to_owned() } else { differ.join("; ") });
    Ok(())
}

/// Starts a plain TCP proxy before the server, on the relay's host, that passes on 64 bytes at a time, as any way may;
/// gives its address. Its limits, which are never reached, are what makes the pieces small.
fn small_pieces(world: &mut World) -> anyhow::Result<String> {
    let far = world.start_actor("db", "door")?;
    let near = world.start_actor("relay", "proxy")?;
    let door = format!("{}:7000", world.net.address("db"));
    let address = "127.0.0.1:7001".to_owned();
    let served = world.served();
    for (actor, name, own, to) in [(far, "door", &door, &served), (near, "proxy", &address, &door)] {
        let proxy = json!({"proxy": {"to": to, "limits": {"step_bytes": 1_u64 << 40, "steps": 0}}});
        let serve = json!({"op": "serve", "name": name, "address": own, "script": [proxy]});
        world.app(actor).say(&serve)?;
        world.app(actor).expect("listening", name, SOON)?;
    }
    Ok(address)
}

/// One pass, or one of a section.
fn one(
    world: &World,
    program: &Path,
    (host, address): (&str, &str),
    only: &str,
) -> anyhow::Result<Vec<(String, String)>> {
    let (ip, port) = address.rsplit_once(':').context("an address")?;
    let report = world.path(&format!("h2spec-{host}.xml"));
    let mut words = vec!["-h", ip, "-p", port, "-P", "/lab.Lab/Echo", "-o", ANSWER, "-j", &report];
    words.extend(Some(only).filter(|only| !only.is_empty()));
    let enter = world.net.enter(host);
    let (first, rest) = enter.split_first().context("a host's words")?;
    let mut command = Command::new(first);
    command.args(rest).arg(program).args(words).stdin(Stdio::null());
    // Its exit code says whether all passed: no server passes all.
    let output = command.output().with_context(|| format!("cannot start {}", program.display()))?;
    let text = std::fs::read_to_string(&report).with_context(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("h2spec, {}, has written no report: {}", output.status, said.trim())
    })?;
    std::fs::remove_file(&report)?;
    Ok(read(&text))
}

fn add(ends: &mut Ends, pass: Vec<(String, String)>) {
    for (name, end) in pass {
        ends.entry(name).or_default().push(end);
    }
}

/// Cases that ended through the chain as they never did without it, and how.
fn differing<'a>(reference: &'a Ends, chain: &'a Ends) -> Vec<(&'a String, &'a String)> {
    let new = |(name, through): (&'a String, &'a Vec<String>)| {
        let known = reference.get(name)?;
        Some((name, through.iter().find(|end| !known.contains(end))?))
    };
    chain.iter().filter_map(new).collect()
}

/// The section of a case, as h2spec takes it.
fn section(name: &str) -> Option<String> {
    name.split(' ').next().map(str::to_owned)
}

const PASSED: &str = "passed";

/// Addresses differ from run to run.
fn is_address(word: &str) -> bool {
    word.contains("-&gt;") || word.contains("->")
}

/// The cases of a JUnit report and how they ended. Cases that share a name are numbered.
fn read(report: &str) -> Vec<(String, String)> {
    let mut cases: Vec<(String, String)> = Vec::new();
    for text in report.split("<testcase ").skip(1) {
        let text = text.split("</testcase>").next().unwrap_or_default();
        let base = format!("{} {}", attribute(text, "package"), attribute(text, "classname"));
        let same = cases.iter().filter(|(name, _)| name.starts_with(&base)).count();
        let name = if same == 0 { base } else { format!("{base} #{}", same + 1) };
        let broken = ["<failure>", "<error>"].iter().find_map(|tag| text.split_once(tag));
        let end = match broken {
            Some((_, why)) => {
                let why = why.split("</").next().unwrap_or_default();
                why.split_whitespace().filter(|word| !is_address(word)).collect::<Vec<_>>().join(" ")
            }
            None if text.contains("<skipped") => "skipped".to_owned(),
            None => PASSED.to_owned(),
        };
        cases.push((name, end));
    }
    cases
}

fn attribute<'a>(text: &'a str, name: &str) -> &'a str {
    let begin = format!("{name}=\"");
    text.split_once(&begin).and_then(|(_, rest)| rest.split('"').next()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read() {
        let report = r#"<testsuites><testsuite name="3.5." package="http2/3.5" id="3.5">
<testcase package="http2/3.5" classname="Sends a" time="0.1"></testcase>
<testcase package="http2/3.5" classname="Sends a" time="0.1"><skipped></skipped></testcase>
<testcase package="http2/4.2" classname="Sends b" time="0.1"><failure>GOAWAY Frame
Connection closed
Error: read tcp 127.0.0.1:1->127.0.0.1:2: read: reset</failure></testcase></testsuite></testsuites>"#;
        let cases = read(report);
        let words: Vec<(&str, &str)> =
            cases.iter().map(|(name, end)| (name.as_str(), end.as_str())).collect();
        assert_eq!(
            words,
            [
                ("http2/3.5 Sends a", "passed"),
                ("http2/3.5 Sends a #2", "skipped"),
                ("http2/4.2 Sends b", "GOAWAY Frame Connection closed Error: read tcp read: reset"),
            ]
        );
    }
}
