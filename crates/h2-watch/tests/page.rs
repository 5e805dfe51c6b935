//! `docs/hints.md` and the hints say the same.

#[expect(dead_code, reason = "shared with the other tests")]
mod words;

use std::collections::BTreeMap;

use hopline_h2_watch::{EndedBy, HintKind};
use words::*;

/// Sections of the page by their titles.
fn sections() -> BTreeMap<String, String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/hints.md");
    let page = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let parts = page.split("\n## ").skip(1);
    parts.filter_map(|part| part.split_once('\n')).map(|(title, text)| (title.into(), text.into())).collect()
}

#[test]
fn each_hint_has_its_section_with_its_numbers() {
    let sections = sections();
    let titles: Vec<&str> = sections.keys().map(String::as_str).collect();
    let mut names = HintKind::ALL.map(HintKind::name);
    names.sort_unstable();
    assert_eq!(titles, names);
    for kind in HintKind::ALL {
        let text = &sections[kind.name()];
        for number in kind.numbers() {
            assert!(text.contains(&format!("`{number}`")), "{}: {number}", kind.name());
        }
        for part in ["**Evidence.**", "**What to change", "**Goes away**"] {
            assert!(text.contains(part), "{}: {part}", kind.name());
        }
        assert_eq!(kind.page(), format!("docs/hints.md#{}", kind.name()));
    }
}

/// The settings of a message, by the name that the page has in its tables.
fn settings_of(message: &str) -> impl Iterator<Item = (&str, &str)> {
    message
        .split("; ")
        .filter_map(|part| part.split_once(": "))
        .filter(|(client, _)| CLIENTS.contains(client))
}

const CLIENTS: [&str; 6] = ["grpc-go", "grpc-java", "grpcio", "grpc-js", "tonic", "grpc-dotnet"];

/// Each setting that a message names is in the page's table, word for word.
#[test]
fn the_settings_of_messages_are_those_of_the_page() {
    let sections = sections();
    let agents =
        ["grpc-go/1", "grpc-java-netty/1", "grpc-python/1", "grpc-node-js/1", "tonic/1", "grpc-dotnet/1"];
    let mut compared = 0;
    for agent in agents {
        let mut talk = Talk::begin();
        // Everything wrong at once.
        talk.client(&request_of(1, "", "/run/x.sock", agent));
        talk.server(&reset(1, 1));
        for stream in [3, 5, 7] {
            talk.watcher.set_path_round_trip(Some(std::time::Duration::from_millis(50)));
            talk.client(&request_of(stream, "1m", "localhost", agent));
            talk.server(&[response(stream), trailers(stream, "0", "")].concat());
        }
        talk.client(&request_of(9, "1M", "localhost", agent));
        talk.server(&[response(9), message(9, 65_530)].concat());
        talk.wait_ms(6_000);
        talk.server(&goaway(9, 11, "too_many_pings"));
        for _ in 0..40 {
            talk.reconnect(EndedBy::Fault);
            talk.hello();
            talk.client(&request_of(1, "1M", "localhost", agent));
            talk.server(&[response(1), trailers(1, "14", "")].concat());
            talk.wait_ms(10);
            talk.client(&request_of(3, "1M", "localhost", agent));
            talk.server(&[response(3), trailers(3, "14", "")].concat());
        }
        talk.wait_ms(70_000);
        for hint in talk.hints() {
            let text = sections[hint.kind.name()].replace('`', "");
            for (client, setting) in settings_of(&hint.message) {
                let first = setting.split(". ").next().unwrap_or(setting);
                let section = if hint.kind == HintKind::DeadlineTooShort {
                    sections["no_deadline"].replace('`', "")
                } else {
                    text.clone()
                };
                let row = format!("| {client} | {first}");
                assert!(section.contains(&row), "{}: {row}", hint.kind.name());
                compared += 1;
            }
        }
    }
    assert!(compared >= 30, "{compared}");
}
