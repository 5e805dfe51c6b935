//! `docs/limits.md`: the limits of all crates in one table each, from the code that obeys them.

use std::fmt::Write as _;

use hopline_limits::Limit;

const HEAD: &str = "# Limits\n\n\
    What a peer, an application or a file can make a process hold or do, at most. Written by `cargo xtask reference` from\n\
    the `LIMITS` of each crate, each of which takes its values from the code that obeys them.\n\n\
    Where the counter is `hopline_limit_reached_total`, the limit counts how often it was met, under its name; `/status`\n\
    shows the same as `limits_reached`. A test provokes every row of a link. What can be set of a link is a field of\n\
    `Limits`, which says why its default is what it is.\n\n\
    One session costs at most its window in unread bytes, whatever its peer does. All sessions of a link\n\
    together cost their number times `early_credit`, and `budget`: 128 MiB for 4,096 by default. What waits to be\n\
    sent costs at most `send_queue` a session, or, at a forwarder, what the other link has granted. At an edge a\n\
    session costs up to 40 KiB beside: its tasks and connection, and what its buffers are larger than what is in\n\
    them. Memory of sessions that are gone goes back to the system, most of it within seconds.\n";

/// The crates, each with its heading, folder and rows.
const ALL: [(&str, &str, &[Limit]); 6] = [
    ("A link", "link-proto", hopline_link_proto::LIMITS),
    ("The relay's router", "relay/src/core", hopline_relay::core::LIMITS),
    ("The relay around it", "relay", hopline_relay::LIMITS),
    ("An edge", "edge", hopline_edge::LIMITS),
    ("Joining, tokens and state folders", "identity", hopline_identity::LIMITS),
    ("The status address", "admin", hopline_admin::LIMITS),
];

/// The page.
pub(crate) fn page() -> String {
    let mut page = HEAD.to_owned();
    for (heading, folder, limits) in ALL {
        // Writing to a string can't fail.
        let _ = write!(
            page,
            "\n## {heading}\n\n`crates/{folder}`\n\n| limit | default | unit | bounds | guards against | beyond it | counter |\n|---|---|---|---|---|---|---|\n"
        );
        for limit in limits {
            let Limit { name, default, unit, bounds, guards_against, beyond, counter } = limit;
            let counter = counter.map_or_else(|| "none".to_owned(), |counter| format!("`{counter}`"));
            let default = grouped(*default);
            let _ = writeln!(
                page,
                "| `{name}` | {default} | {unit} | {bounds} | {guards_against} | {beyond} | {counter} |"
            );
        }
    }
    page
}

/// 65536 as 65,536.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use hopline_admin::metrics::families;
    use hopline_limits::REACHED;

    use super::*;

    #[test]
    fn each_limit_is_described_and_its_counter_is_a_metric() {
        let metrics: BTreeSet<_> = families::all().iter().map(|family| family.name).collect();
        let mut counted = 0;
        for (heading, _, limits) in ALL {
            let names: BTreeSet<_> = limits.iter().map(|limit| limit.name).collect();
            assert_eq!(names.len(), limits.len(), "{heading}");
            for limit in limits {
                let words = [limit.unit, limit.bounds, limit.guards_against, limit.beyond];
                assert!(limit.default > 0 && words.iter().all(|word| !word.is_empty()), "{limit:?}");
                assert!(limit.counter.is_none_or(|counter| metrics.contains(counter)), "{limit:?}");
                counted += usize::from(limit.counter == REACHED);
            }
        }
        // As `docs/metrics.md` says.
        assert_eq!(counted, 35);
    }
}
