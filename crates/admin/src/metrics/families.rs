//! Every family of `/metrics`, with its help and its bound: `docs/metrics.md` is written from [`all`].
//!
//! Counters by reason, cause or limit have a series for each that there was; all others are there from the start.

use super::{Counter, Described, Gauge, Histogram};

macro_rules! families {
    ($($name:ident: $kind:ident = $family:literal, [$($label:literal),*], $series:literal, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $name: $kind<{ <[&str]>::len(&[$($label),*]) }> =
                $kind::new($family, $help, [$($label),*], $series);
        )*

        /// All of them, in the order in which they are documented.
        #[must_use]
        pub fn all() -> Vec<Described> {
            vec![$($name.described()),*]
        }
    };
}

families! {
    BUILD_INFO: Gauge = "hopline_build_info", ["version", "role"], "1",
        "Always 1; its labels say which program runs.";
    UPTIME: Gauge = "hopline_uptime_seconds", [], "1",
        "Seconds since the process started.";
    HEALTHY: Gauge = "hopline_healthy", [], "1",
        "1 while `hopline status` would exit with 0, else 0.";
    LOG_LINES_DROPPED: Counter = "hopline_log_lines_dropped_total", [], "1",
        "Log lines that were dropped because stderr did not take them.";
    FINDINGS: Gauge = "hopline_findings", ["level", "place", "reason"], "2 levels x 7 places x 18 reasons",
        "What is not well now, by the failing hop or process and the reason; none when all is well.";

    LINK_UP: Gauge = "hopline_link_up", ["relay"], "relays",
        "1 while the link to the relay carries sessions, also while it is suspect or drains, else 0.";
    LINK_STATE: Gauge = "hopline_link_state", ["relay", "state"], "relays x 5 states",
        "1 for the state that the link to the relay is in, 0 for the others.";
    LINK_ROUND_TRIP: Gauge = "hopline_link_round_trip_seconds", ["relay"], "relays",
        "The smoothed round trip of the link to the relay; absent before the first.";
    LINK_LAST_HEARD: Gauge = "hopline_link_last_heard_seconds", ["relay"], "relays",
        "Seconds since the last byte came by the link to the relay; absent while there is no link.";
    LINK_SESSIONS: Gauge = "hopline_link_open_sessions", ["relay"], "relays",
        "Sessions open on the link to the relay, the control session included.";
    LINK_WINDOW: Gauge = "hopline_link_window_bytes", ["relay"], "relays",
        "What unread data of the link's sessions may come to hold; absent while there is no link.";
    LINK_WINDOW_LIMIT: Gauge = "hopline_link_window_bytes_limit", ["relay"], "relays",
        "What unread data of the link's sessions may come to hold at most; absent while there is no link.";
    LINK_SENT: Counter = "hopline_link_sent_bytes_total", ["relay"], "relays",
        "Payload of sessions sent on links to the relay.";
    LINK_RECEIVED: Counter = "hopline_link_received_bytes_total", ["relay"], "relays",
        "Payload of sessions received on links to the relay.";
    LINK_DIALS: Counter = "hopline_link_dials_total", ["relay", "result"], "relays x 2 results",
        "Dials to the relay, by result: up or failed. All but the first one up are redials.";
    LINK_ENDS: Counter = "hopline_link_ends_total", ["relay", "cause"], "relays x 7 causes",
        "Links to the relay that ended, by cause.";
    LINK_DEATHS: Counter = "hopline_link_liveness_deaths_total", ["relay"], "relays",
        "Links to the relay that were given up because nothing was heard within their bound.";

    MAPPING_STATE: Gauge = "hopline_mapping_state", ["mapping", "state"], "mappings x 5 states",
        "1 for the state that the mapping is in, 0 for the others.";
    MAPPING_OPEN: Gauge = "hopline_mapping_open_sessions", ["mapping"], "mappings",
        "Connections of applications that are open now, those that wait for their open included.";
    MAPPING_SESSIONS: Counter = "hopline_mapping_sessions_total", ["mapping"], "mappings",
        "Connections of applications that were accepted.";
    MAPPING_OPENS: Counter = "hopline_mapping_opens_total", ["mapping", "result"], "mappings x 18 results",
        "Opens that came to a result: accepted, or the reason for which they were refused.";
    MAPPING_ABORTS: Counter = "hopline_mapping_aborts_total", ["mapping", "reason", "hop"],
        "mappings x 17 reasons x 4 hops",
        "Sessions and opens that ended by a fault, by reason and by the number of links that the reason had crossed.";
    MAPPING_SENT: Counter = "hopline_mapping_sent_bytes_total", ["mapping"], "mappings",
        "Bytes from applications to the service.";
    MAPPING_RECEIVED: Counter = "hopline_mapping_received_bytes_total", ["mapping"], "mappings",
        "Bytes from the service to applications.";
    MAPPING_AGENTS: Gauge = "hopline_mapping_agents", ["mapping", "state"], "mappings x 4 states",
        "Agents that serve the mapping's service, as the relays say, by the state of the hop to them.";
    MAPPING_FAR_ROUND_TRIP: Gauge = "hopline_mapping_far_round_trip_seconds", ["mapping"], "mappings",
        "The longest round trip between a relay and an agent of the mapping's service; absent while none is known.";
    MAPPING_FAR_HEARD: Gauge = "hopline_mapping_far_last_heard_seconds", ["mapping"], "mappings",
        "The longest time for which a relay has not heard an agent of the mapping's service; absent while none is known.";

    CALLS_STARTED: Counter = "hopline_calls_started_total", ["mapping"], "mappings",
        "gRPC calls that began, on mappings that are read in passing.";
    CALLS: Counter = "hopline_calls_total", ["mapping", "status"], "mappings x 18 statuses",
        "gRPC calls that ended, by status code; other stands for codes that gRPC does not have.";
    CALL_DURATION: Histogram = "hopline_call_duration_seconds", ["mapping"], "mappings x 18",
        "How long gRPC calls took, from the request's headers to the end.";
    CALL_DEADLINE_LEFT: Histogram = "hopline_call_deadline_left_seconds", ["mapping"], "mappings x 18",
        "What was left of the deadline when gRPC calls that had one ended; 0 where it had passed.";
    HINTS: Counter = "hopline_hints_total", ["mapping", "kind"], "mappings x 11 kinds",
        "How often each hint has appeared.";
    INSPECTED: Counter = "hopline_inspected_connections_total", ["mapping", "protocol"], "mappings x 3 protocols",
        "Connections that were read in passing, by what they turned out to be: h2c, tls or other.";
    GAVE_UP: Counter = "hopline_inspect_gave_up_total", ["mapping", "reason"], "mappings x 6 reasons",
        "Connections of HTTP/2 that could not be followed any more, by reason; their bytes go on.";

    SERVICE_STATE: Gauge = "hopline_service_state", ["service", "state"], "services x 5 states",
        "1 for the state that the published service is in, 0 for the others.";
    SERVICE_OPEN: Gauge = "hopline_service_open_sessions", ["service"], "services",
        "Sessions to the service's server that are open now.";
    SERVICE_SESSIONS: Counter = "hopline_service_sessions_total", ["service"], "services",
        "Sessions that reached the service's server.";
    SERVICE_OPENS: Counter = "hopline_service_opens_total", ["service", "result"], "services x 18 results",
        "Opens that came to a result: accepted, or the reason for which they were refused.";
    SERVICE_ABORTS: Counter = "hopline_service_aborts_total", ["service", "reason", "hop"],
        "services x 17 reasons x 4 hops",
        "Sessions and opens that ended by a fault, by reason and by the number of links that the reason had crossed.";
    SERVICE_SENT: Counter = "hopline_service_sent_bytes_total", ["service"], "services",
        "Bytes from the service's server to applications.";
    SERVICE_RECEIVED: Counter = "hopline_service_received_bytes_total", ["service"], "services",
        "Bytes from applications to the service's server.";

    RELAY_DRAINING: Gauge = "hopline_relay_draining", [], "1",
        "1 while the relay is on its way out, else 0.";
    RELAY_LINKS: Gauge = "hopline_relay_links", ["state"], "3 states",
        "Links of machines at the relay, by state.";
    RELAY_ROUND_TRIP: Gauge = "hopline_relay_link_round_trip_max_seconds", [], "1",
        "The longest round trip of any link at the relay; absent while none is known.";
    RELAY_LAST_HEARD: Gauge = "hopline_relay_link_last_heard_max_seconds", [], "1",
        "The longest time for which any link at the relay has been silent; absent while there is none.";
    RELAY_WINDOW_MAX: Gauge = "hopline_relay_link_window_bytes_max", [], "1",
        "The most that unread data may come to hold on any one link at the relay; absent while there is none.";
    RELAY_LINK_ENDS: Counter = "hopline_relay_link_ends_total", ["cause"], "6 causes",
        "Links at the relay that ended, by cause.";
    RELAY_DEATHS: Counter = "hopline_relay_liveness_deaths_total", [], "1",
        "Links at the relay that were given up because nothing was heard within their bound.";
    RELAY_SERVICES: Gauge = "hopline_relay_services", [], "1",
        "Names that are served through the relay.";
    RELAY_AGENTS: Gauge = "hopline_relay_agents", ["state"], "3 states",
        "Registrations of services by agents, by state.";
    RELAY_OPEN: Gauge = "hopline_relay_open_sessions", [], "1",
        "Sessions through the relay that are open now.";
    RELAY_SESSIONS: Counter = "hopline_relay_sessions_total", [], "1",
        "Sessions that the relay has sent on to an agent.";
    RELAY_OPENS: Counter = "hopline_relay_opens_total", ["result"], "18 results",
        "Opens whose session has ended: accepted, or the reason for which they were refused.";
    RELAY_ABORTS: Counter = "hopline_relay_aborts_total", ["reason", "hop"], "17 reasons x 4 hops",
        "Sessions through the relay that were aborted, by reason and by the number of links that the reason had crossed.";
    RELAY_SENT: Counter = "hopline_relay_sent_bytes_total", [], "1",
        "Payload of sessions sent on links at the relay.";
    RELAY_RECEIVED: Counter = "hopline_relay_received_bytes_total", [], "1",
        "Payload of sessions received on links at the relay.";

    HELD_OPENS: Gauge = "hopline_held_opens", [], "1",
        "Opens that wait now, at an edge for a link and at a relay for an agent.";
    HELD_OPENS_LIMIT: Gauge = "hopline_held_opens_limit", [], "1",
        "How many opens may wait at most.";
    KEPT: Gauge = "hopline_kept_bytes", [], "1",
        "Bytes in the replay buffers of an edge.";
    KEPT_LIMIT: Gauge = "hopline_kept_bytes_limit", [], "1",
        "How many bytes the replay buffers of an edge may hold.";
    LINKS_LIMIT: Gauge = "hopline_relay_links_limit", [], "1",
        "How many links the relay takes at most.";
    REGISTRATIONS: Gauge = "hopline_relay_registrations", [], "1",
        "Registrations of services that the relay holds.";
    REGISTRATIONS_LIMIT: Gauge = "hopline_relay_registrations_limit", [], "1",
        "How many registrations the relay takes at most.";
    HANDSHAKES: Gauge = "hopline_relay_handshakes", [], "1",
        "Connections to the relay that are not links yet.";
    HANDSHAKES_LIMIT: Gauge = "hopline_relay_handshakes_limit", [], "1",
        "How many connections that are not links yet the relay takes at most.";
    WINDOW: Gauge = "hopline_window_bytes", [], "1",
        "What unread data of sessions may come to hold, on all links together.";
    WINDOW_LIMIT: Gauge = "hopline_window_bytes_limit", [], "1",
        "What unread data of sessions may come to hold at most: the budget of one link, times the links.";
    LIMIT_REACHED: Counter = "hopline_limit_reached_total", ["limit"], "35 limits: 22 of a link, 12 of the router, 1 of its listener",
        "How often a limit on what a peer can make this process hold was met, by its name.";
}
