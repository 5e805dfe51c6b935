//! The modules at the top of a crate, its rooms, and which imports which: none may import itself by way of others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

/// The room of `lib.rs` itself.
const ROOT: &str = "lib";

/// For each room those that it imports.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Prints the graph of each crate; fails where rooms import each other in a circle.
pub(crate) fn run(root: &Path, crates: &[String]) -> anyhow::Result<()> {
    let mut wrong = Vec::new();
    for name in crates {
        let graph = graph(&root.join("crates").join(name).join("src"))?;
        say(name);
        for (room, imports) in &graph {
            let imports: Vec<&str> = imports.iter().map(String::as_str).collect();
            say(&format!("  {room} -> {}", imports.join(", ")));
        }
        wrong.extend(
            circles(&graph).iter().map(|circle| format!("{name}: a circle of {}", circle.join(", "))),
        );
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the chore's report goes to the terminal")]
fn say(line: &str) {
    println!("{line}");
}

fn graph(folder: &Path) -> anyhow::Result<Graph> {
    let mut files = Vec::new();
    for path in crate::wire::sources(folder)? {
        let source = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let mut module: Vec<String> = path
            .strip_prefix(folder)?
            .with_extension("")
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect();
        module.pop_if(|last| ["lib", "main", "mod"].contains(&last.as_str()));
        files.push((module, source));
    }
    let rooms: BTreeSet<String> = files.iter().filter_map(|(module, _)| module.first().cloned()).collect();
    let mut graph = Graph::new();
    for (module, source) in &files {
        let room = module.first().map_or(ROOT, String::as_str);
        let imports = imports(module, source)
            .into_iter()
            .map(|name| if rooms.contains(&name) { name } else { ROOT.to_owned() });
        graph.entry(room.to_owned()).or_default().extend(imports.filter(|import| import != room));
    }
    Ok(graph)
}

/// Groups of rooms each of which reaches all the others of its group.
fn circles(graph: &Graph) -> BTreeSet<Vec<&str>> {
    let reached = |from: &str| {
        let mut found = BTreeSet::new();
        let mut next: Vec<&String> = graph.get(from).into_iter().flatten().collect();
        while let Some(room) = next.pop() {
            if found.insert(room.as_str()) {
                next.extend(graph.get(room).into_iter().flatten());
            }
        }
        found
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|room| (room.as_str(), reached(room))).collect();
    let circle = |room| reached[room].iter().copied().filter(|other| reached[other].contains(room)).collect();
    let mut circles: BTreeSet<Vec<&str>> = reached.keys().copied().map(circle).collect();
    circles.remove(&Vec::new());
    circles
}

/// The first names behind `crate::`, and behind `super::` as far as it leads to the top; of a `use` in the root also the
/// names that it begins with.
fn imports(module: &[String], source: &str) -> BTreeSet<String> {
    let tokens = tokens(source);
    let mut found = BTreeSet::new();
    // Modules that are written out in the file, each with the depth of its braces.
    let (mut inline, mut depth) = (Vec::new(), 0);
    let mut rest = &tokens[..];
    while let [token, behind @ ..] = rest {
        rest = behind;
        match (*token, behind) {
            ("mod", [_, "{", ..]) => inline.push(depth),
            ("{", _) => depth += 1,
            ("}", _) => {
                depth -= 1;
                inline.pop_if(|opened| *opened == depth);
            }
            ("crate", ["::", path @ ..]) => found.extend(heads(path)),
            ("use", path) if module.is_empty() && inline.is_empty() => found.extend(heads(path)),
            ("super", ["::", path @ ..]) => {
                let mut path = path;
                let mut above = (module.len() + inline.len()).saturating_sub(1);
                while let ["super", "::", further @ ..] = path {
                    (path, above) = (further, above.saturating_sub(1));
                }
                rest = path;
                match module.first().filter(|_| above > 0) {
                    Some(room) => _ = found.insert(room.clone()),
                    None => found.extend(heads(path)),
                }
            }
            _ => {}
        }
    }
    // Of the root's own paths, those that lead out of the crate are none of its rooms.
    ["crate", "self", "super", "std", "core"].iter().for_each(|word| _ = found.remove(*word));
    found
}

/// The first name of a path, or of each path between its braces.
fn heads(path: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let (mut depth, mut is_head) = (0, true);
    for token in path {
        match *token {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," if depth == 1 => is_head = true,
            name => {
                if std::mem::take(&mut is_head) {
                    found.push(name.to_owned());
                }
            }
        }
        if depth == 0 {
            break;
        }
    }
    found
}

/// Names, `::` and single signs; without comments and what stands in quotes.
fn tokens(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let is_name = |sign: char| sign.is_alphanumeric() || sign == '_';
        let raw = rest
            .trim_start_matches('b')
            .strip_prefix('r')
            .filter(|raw| raw.trim_start_matches('#').starts_with('"'));
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(raw) = raw {
            let hashes = &raw[..raw.len() - raw.trim_start_matches('#').len()];
            let text = &raw[hashes.len() + 1..];
            let end = format!("\"{hashes}");
            rest.len() - text.len() + text.find(&end).map_or(text.len(), |at| at + end.len())
        } else if first == '"' {
            quoted(rest, '"').unwrap_or(rest.len())
        } else if first == '\'' {
            // A lifetime has no second quote behind one sign.
            quoted(rest, '\'')
                .filter(|len| rest[1..].starts_with('\\') || rest[1..len - 1].chars().count() == 1)
                .unwrap_or(1)
        } else {
            let len = match rest.find(|sign| !is_name(sign)).unwrap_or(rest.len()) {
                0 if rest.starts_with("::") => 2,
                0 => first.len_utf8(),
                len => len,
            };
            if !first.is_whitespace() {
                found.push(&rest[..len]);
            }
            len
        };
        rest = &rest[len..];
    }
    found
}

/// How long a text in quotes is, with them.
fn quoted(text: &str, quote: char) -> Option<usize> {
    let mut is_escaped = true;
    text.char_indices().find_map(|(at, sign)| {
        let is_end = sign == quote && !is_escaped;
        is_escaped = sign == '\\' && !is_escaped;
        is_end.then(|| at + sign.len_utf8())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rooms_of_the_edge_are_in_no_circle() {
        run(&crate::root(), &["edge".to_owned()]).unwrap();
    }

    fn found(module: &[&str], source: &str) -> Vec<String> {
        let module: Vec<String> = module.iter().map(|&part| part.to_owned()).collect();
        imports(&module, source).into_iter().collect()
    }

    #[test]
    fn imports_are_found_by_use_and_by_path() {
        let source = r##"
            //! See [`a`](crate::not_this).
            use crate::b::{C, d};
            use crate::{e::F, g::{h, i}, j};
            fn k<'a>(l: &'a crate::m::N) -> char { let _ = ("crate::no", r#"crate::"no"#, '"', '\''); crate::o::p() }
            /* crate::no */
        "##;
        assert_eq!(found(&["x"], source), ["b", "e", "g", "j", "m", "o"]);
        assert_eq!(found(&[], "mod a; use a::B; pub use c::{d::E, F}; use std::io;"), ["a", "c"]);
    }

    #[test]
    fn super_leads_as_far_as_it_says() {
        assert_eq!(found(&["a"], "use super::b::C;"), ["b"]);
        assert_eq!(found(&["a", "d"], "use super::b::C;"), ["a"]);
        assert_eq!(found(&["a", "d"], "use super::super::{b::C, e};"), ["b", "e"]);
        assert_eq!(found(&["a"], "mod tests { fn f() {} use super::*; } use super::b;"), ["a", "b"]);
    }

    #[test]
    fn rooms_that_reach_each_other_are_a_circle() {
        let graph = |edges: &[(&str, &str)]| {
            let mut graph = Graph::new();
            for (from, to) in edges {
                graph.entry((*to).to_owned()).or_default();
                graph.entry((*from).to_owned()).or_default().insert((*to).to_owned());
            }
            graph
        };
        assert!(circles(&graph(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
        let two = graph(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "f"), ("f", "e")]);
        assert_eq!(circles(&two).into_iter().collect::<Vec<_>>(), [vec!["a", "b", "c"], vec!["e", "f"]]);
    }
}
