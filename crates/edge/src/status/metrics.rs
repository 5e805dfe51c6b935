//! What the edge counts for `/status` and `/metrics` beside its mappings and services.

use hopline_admin::metrics::{Buckets, Metrics, families};
use hopline_admin::status::{Budget, EdgeBudgets};
use hopline_h2_watch::{GaveUp, Histogram, MappingWatch, Status};
use hopline_link::Info;

use crate::agent::Agent;
use crate::links::{MAX_HELD, Uplinks};
use crate::pump::replay::REPLAY_MEMORY;
use crate::sidecar::Sidecar;

/// What unread data may come to hold on one link.
pub(crate) fn window(info: &Info) -> Budget {
    Budget { used: info.window_bytes, limit: info.window_budget }
}

pub(crate) fn budgets(uplinks: &Uplinks, sidecar: &Sidecar, agent: &Agent) -> EdgeBudgets {
    let links = uplinks.all().iter().flat_map(|uplink| uplink.links());
    EdgeBudgets {
        held_opens: Budget { used: uplinks.held() as u64, limit: MAX_HELD as u64 },
        // Sidecar and agent have one each.
        kept_bytes: Budget {
            used: (sidecar.memory().used() + agent.memory().used()) as u64,
            limit: 2 * REPLAY_MEMORY as u64,
        },
        window_bytes: links.map(|mux| window(&mux.info())).fold(Budget::default(), Budget::plus),
    }
}

/// What was read in passing on one mapping. A counter by status, kind or reason has a series for each that there was.
pub(crate) fn calls(metrics: &mut Metrics, mapping: &str, watch: &MappingWatch) {
    let counters = watch.counters();
    metrics.counter(&families::CALLS_STARTED, [mapping], counters.calls);
    for status in Status::all() {
        let count = counters.ended_with(status);
        if count > 0 || status.name() == "OK" {
            metrics.counter(&families::CALLS, [mapping, status.name()], count);
        }
    }
    metrics.histogram(&families::CALL_DURATION, [mapping], buckets(&counters.duration));
    metrics.histogram(&families::CALL_DEADLINE_LEFT, [mapping], buckets(&counters.deadline_left));
    for (kind, count) in watch.raised().filter(|(_, count)| *count > 0) {
        metrics.counter(&families::HINTS, [mapping, kind.name()], count);
    }
    let inspected = watch.inspected();
    for (protocol, count) in [("h2c", inspected.h2c), ("tls", inspected.tls), ("other", inspected.other)] {
        metrics.counter(&families::INSPECTED, [mapping, protocol], count);
    }
    for (reason, count) in GaveUp::ALL.iter().zip(inspected.gave_up).filter(|(_, count)| *count > 0) {
        metrics.counter(&families::GAVE_UP, [mapping, reason.name()], count);
    }
}

fn buckets(histogram: &Histogram) -> Buckets<'_> {
    const BOUNDS: [f64; Histogram::BOUNDS_MS.len()] = {
        let mut bounds = [0.0; Histogram::BOUNDS_MS.len()];
        let mut index = 0;
        while index < bounds.len() {
            bounds[index] = Histogram::BOUNDS_MS[index] as f64 / 1e3;
            index += 1;
        }
        bounds
    };
    Buckets { bounds: &BOUNDS, counts: histogram.counts(), sum: histogram.sum().as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use hopline_h2_watch::{EndedBy, Limits};
    use hopline_link::Counters;

    use super::*;

    /// What `docs/metrics.md` says of the series of what is read in passing, and of limits.
    #[test]
    fn the_lists_are_as_long_as_the_documented_bounds_say() {
        let bound = |family: &str| {
            let families = families::all();
            let found = families.iter().find(|described| described.name == family).unwrap();
            found
                .series
                .trim_start_matches("mappings x ")
                .split(' ')
                .next()
                .unwrap()
                .parse::<usize>()
                .unwrap()
        };
        assert_eq!(bound("hopline_calls_total"), Status::all().count());
        // The bounds, infinity, the sum and the count.
        for histogram in ["hopline_call_duration_seconds", "hopline_call_deadline_left_seconds"] {
            assert_eq!(bound(histogram), Histogram::BOUNDS_MS.len() + 3);
        }
        assert_eq!(bound("hopline_hints_total"), hopline_h2_watch::HintKind::ALL.len());
        assert_eq!(bound("hopline_inspected_connections_total"), 3);
        assert_eq!(bound("hopline_inspect_gave_up_total"), GaveUp::ALL.len());
        assert!(bound("hopline_limit_reached_total") >= Counters::default().limits.by_limit().count());
    }

    #[test]
    fn calls_are_shown_by_families_of_the_table() {
        let now = Instant::now();
        let mut watch = MappingWatch::new(true, Limits::default(), now);
        let mut watcher = watch.connect(now);
        // HTTP/2, and then a frame that is none: a window update of one byte.
        watcher.handle_from_client(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x01\x08\0\0\0\0\0\0", now);
        watcher.close(EndedBy::Application, now);
        watch.fold(&mut watcher, now);
        let mut metrics = Metrics::default();
        calls(&mut metrics, "ledger", &watch);
        let page = metrics.render();
        for line in [
            "hopline_calls_started_total{mapping=\"ledger\"} 0",
            "hopline_calls_total{mapping=\"ledger\",status=\"OK\"} 0",
            "hopline_call_duration_seconds_bucket{mapping=\"ledger\",le=\"0.001\"} 0",
            "hopline_call_duration_seconds_bucket{mapping=\"ledger\",le=\"+Inf\"} 0",
            "hopline_call_deadline_left_seconds_count{mapping=\"ledger\"} 0",
            "hopline_inspected_connections_total{mapping=\"ledger\",protocol=\"h2c\"} 1",
            "hopline_inspect_gave_up_total{mapping=\"ledger\",reason=\"framing\"} 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
    }
}
