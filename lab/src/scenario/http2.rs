//! HTTP/2 at its edges: h2spec's cases through the chain, which must end as they do directly.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use super::{Case, Figure, Pace, Scenario};
use crate::apps;
use crate::result::Bound;
use crate::world::{Options, Way, World};

/// How often each way: what ends in two ways directly may do so through the chain.
const PASSES: u32 = 2;
/// Seconds that h2spec waits for an answer. Its default of 2 is short on a busy machine.
const ANSWER: &str = "3";

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "h2spec",
    promise: "P1",
    what: "h2spec, which breaks HTTP/2 in every way that the specification names, against the server itself and through a \
           mapping that is watched and explains (`explain: on`). Each case, twice each way, ends as it does directly: with \
           the same frames, the same close.",
    figures: &[
        figure("cases", "cases", Bound::AtLeast(145.0)),
        figure("passed", "that the server passes directly", Bound::None),
        figure("differ", "that end otherwise through the chain", Bound::AtMost(0.0)),
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
    let (direct, chain) = (world.served(), world.target());
    let (direct, chain) = std::thread::scope(|scope| {
        let direct = scope.spawn(|| passes(&world, &program, "db", &direct));
        let chain = passes(&world, &program, "web", &chain);
        (direct.join(), chain)
    });
    let Ok(direct) = direct else { bail!("h2spec against the server itself") };
    let (direct, chain) = (direct?, chain?);
    let differ: Vec<String> = direct
        .iter()
        .filter_map(|(name, ends)| {
            let through = chain.get(name)?;
            let other = through.iter().find(|end| !ends.contains(end))?;
            Some(format!("{name}: directly {:?}, through the chain {other:?}", ends.first()?))
        })
        .collect();
    if direct.keys().ne(chain.keys()) {
        bail!("{} cases directly, {} through the chain", direct.len(), chain.len());
    }
    case.count("cases", direct.len());
    case.count("passed", direct.values().filter(|ends| ends.iter().all(|end| end == PASSED)).count());
    case.count("differ", differ.len());
    case.word("which", if differ.is_empty() { "none".to_owned() } else { differ.join("; ") });
    Ok(())
}

fn passes(world: &World, program: &Path, host: &str, address: &str) -> anyhow::Result<Ends> {
    let (ip, port) = address.rsplit_once(':').context("an address")?;
    let mut ends = Ends::new();
    for pass in 0..PASSES {
        let report = world.path(&format!("h2spec-{host}-{pass}.xml"));
        let words = ["-h", ip, "-p", port, "-P", "/lab.Lab/Echo", "-o", ANSWER, "-j", &report];
        let enter = world.net.enter(host);
        let (first, rest) = enter.split_first().context("a host's words")?;
        let mut command = Command::new(first);
        command.args(rest).arg(program).args(words).stdout(Stdio::null()).stderr(Stdio::null());
        // Its exit code says whether all passed: no server passes all.
        command.status().with_context(|| format!("cannot start {}", program.display()))?;
        let text = std::fs::read_to_string(&report).with_context(|| format!("no report {report}"))?;
        for (name, end) in read(&text) {
            ends.entry(name).or_default().push(end);
        }
    }
    Ok(ends)
}

const PASSED: &str = "passed";

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
            // Addresses differ from run to run.
            Some((_, why)) => {
                let why = why.split("</").next().unwrap_or_default();
                why.split_whitespace().filter(|word| !word.contains("-&gt;")).collect::<Vec<_>>().join(" ")
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
Error: read tcp 127.0.0.1:1-&gt;127.0.0.1:2: read: reset</failure></testcase></testsuite></testsuites>"#;
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
