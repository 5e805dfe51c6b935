//! What a hint says: what is so, and the setting that changes it, in the words of each implementation.
//!
//! `docs/hints.md` says more about each; a test compares the two.

use crate::evidence::{Evidence, HintKind};
use crate::field::Implementation;

/// The text of a hint for the implementations that were seen.
pub(crate) fn message(kind: HintKind, evidence: &Evidence, agents: &[Implementation]) -> String {
    let mut text = what(kind, evidence);
    for agent in agents {
        let setting = setting(kind, *agent);
        if !setting.is_empty() {
            text.push_str(&format!("; {}: {setting}", agent.name()));
        }
    }
    text
}

fn what(kind: HintKind, all: &Evidence) -> String {
    match kind {
        HintKind::ClientKeepalive if all.client_keepalive.too_many_pings_goaway.0 > 0 => {
            "drop client keepalive: the server answered its PINGs with a GOAWAY too_many_pings, which ends every \
             call; the links watch the path, nothing on it needs a PING. Where it must stay, not below what the \
             server enforces (grpc-go: 5 min)"
                .to_owned()
        }
        HintKind::ClientKeepalive => {
            "drop client keepalive: PINGs less than 15 s apart on an idle connection. This server has not objected, \
             others end every call with a GOAWAY too_many_pings (grpc-go below 5 min); the links watch the path, \
             nothing on it needs a PING"
                .to_owned()
        }
        HintKind::NoDeadline => format!(
            "set a deadline on every call: {} of {} had none. A server that is stuck still answers PINGs; only a \
             deadline ends such a call",
            all.no_deadline.calls_without_deadline.0, all.no_deadline.calls.0
        ),
        HintKind::ConnectionPerCall => format!(
            "keep one channel and reuse it: {} of {} connections carried one call. Each costs a new session, \
             with its round trips",
            all.connection_per_call.connections_with_one_call.0, all.connection_per_call.connections.0
        ),
        HintKind::AppNotReading => format!(
            "read the stream, or cancel it: data of the server waited for the application to read, \
             {} ms at the longest",
            all.app_not_reading.longest_stall_ms.0
        ),
        HintKind::AuthorityIsPath => format!(
            "set the authority to localhost: {} calls were refused that named the unix socket's path as their \
             :authority",
            all.authority_is_path.calls_refused.0
        ),
        HintKind::StreamLimit => format!(
            "calls wait for each other: the server lets {} run at once on a connection, and {} calls began only \
             when another ended. Use several channels, or raise the server's limit",
            all.stream_limit.limit.0, all.stream_limit.calls_that_waited.0
        ),
        HintKind::SmallWindow => format!(
            "enlarge the client's flow-control window: {} bytes in each round trip of {} µs allow {} bytes a \
             second at most, and {} were reached",
            all.small_window.window_bytes.0,
            all.small_window.round_trip_us.0,
            u128::from(all.small_window.window_bytes.0) * 1_000_000
                / u128::from(all.small_window.round_trip_us.0.max(1)),
            all.small_window.bytes_per_s.0
        ),
        HintKind::RetryStorm => format!(
            "pause before a retry, longer each time: {} calls or connections began within 100 ms of a failure, \
             after {} failed calls and {} failed connections",
            all.retry_storm.repeats_within_100ms.0,
            all.retry_storm.calls_failed.0,
            all.retry_storm.connections_failed.0
        ),
        HintKind::MessageTooLarge => format!(
            "the server refused {} calls for the size of a message: send less at a time (a stream of pieces), or \
             raise its receive limit (4 MiB by default): grpc-go grpc.MaxRecvMsgSize(n), grpc-java \
             .maxInboundMessageSize(n), grpcio (\"grpc.max_receive_message_length\", n), grpc-js \
             'grpc.max_receive_message_length': n, tonic .max_decoding_message_size(n), grpc-dotnet \
             MaxReceiveMessageSize",
            all.message_too_large.calls_refused.0
        ),
        HintKind::DeadlineTooShort => format!(
            "allow more time: {} of {} deadlines were shorter than the round trip of the path ({} µs), the \
             shortest {} µs. Such a call can't succeed",
            all.deadline_too_short.calls_below_round_trip.0,
            all.deadline_too_short.calls.0,
            all.deadline_too_short.round_trip_us.0,
            all.deadline_too_short.shortest_deadline_us.0
        ),
        HintKind::GoawayIgnored => format!(
            "make a new connection after a GOAWAY: {} calls began on one more than a second after the server had \
             said that it was leaving. Update the client's library; all known ones do it by themselves",
            all.goaway_ignored.streams_after_goaway.0
        ),
    }
}

/// What to change, in the words of one implementation. Empty where there is nothing of its own to say.
fn setting(kind: HintKind, agent: Implementation) -> &'static str {
    match kind {
        HintKind::ClientKeepalive => keepalive(agent),
        HintKind::NoDeadline | HintKind::DeadlineTooShort => deadline(agent),
        HintKind::ConnectionPerCall => channel(agent),
        HintKind::AppNotReading => reading(agent),
        HintKind::AuthorityIsPath => authority(agent),
        HintKind::StreamLimit => streams(agent),
        HintKind::SmallWindow => window(agent),
        HintKind::RetryStorm => backoff(agent),
        HintKind::MessageTooLarge | HintKind::GoawayIgnored => "",
    }
}

fn keepalive(agent: Implementation) -> &'static str {
    match agent {
        Implementation::Go => "remove grpc.WithKeepaliveParams(...)",
        Implementation::Java => "remove .keepAliveTime(...) and .keepAliveWithoutCalls(true)",
        Implementation::Python => {
            "remove \"grpc.keepalive_time_ms\" and \"grpc.keepalive_permit_without_calls\". It does not do what it \
             seems to: after two PINGs without data one goes out each minute (\"grpc.http2.max_pings_without_data\"), \
             and \"grpc.keepalive_timeout_ms\" does not bound the wait for an answer (\"grpc.http2.ping_timeout_ms\" \
             does)"
        }
        Implementation::Node => "remove 'grpc.keepalive_time_ms' and 'grpc.keepalive_permit_without_calls'",
        Implementation::Tonic => "remove .http2_keep_alive_interval(...) and .keep_alive_while_idle(true)",
        Implementation::DotNet => "remove KeepAlivePingDelay and KeepAlivePingPolicy of SocketsHttpHandler",
        Implementation::Other => "",
    }
}

fn deadline(agent: Implementation) -> &'static str {
    match agent {
        Implementation::Go => "ctx, cancel := context.WithTimeout(ctx, 2*time.Second)",
        Implementation::Java => "stub.withDeadlineAfter(2, TimeUnit.SECONDS)",
        Implementation::Python => "stub.Get(request, timeout=2)",
        Implementation::Node => "client.get(request, { deadline: Date.now() + 2000 }, callback)",
        Implementation::Tonic => {
            "request.set_timeout(Duration::from_secs(2)); it ends at the response's headers, so put \
             tokio::time::timeout around the reading of a stream"
        }
        Implementation::DotNet => "client.GetAsync(request, deadline: DateTime.UtcNow.AddSeconds(2))",
        Implementation::Other => "",
    }
}

fn channel(agent: Implementation) -> &'static str {
    match agent {
        Implementation::Go => "keep the *grpc.ClientConn of grpc.NewClient",
        Implementation::Java => "keep the ManagedChannel",
        Implementation::Python => "keep the channel of grpc.insecure_channel(...)",
        Implementation::Node => "keep the client object, or share one by the option channelOverride",
        Implementation::Tonic => "keep the Channel and clone it: clones share the connection",
        Implementation::DotNet => "keep the GrpcChannel",
        Implementation::Other => "",
    }
}

fn reading(agent: Implementation) -> &'static str {
    match agent {
        Implementation::Go => "call stream.Recv() until io.EOF, or cancel the context",
        Implementation::Java => {
            "return from onNext, call request(n) if disableAutoInboundFlowControl() was, or cancel the call"
        }
        Implementation::Python => "iterate over the call to its end, or call.cancel()",
        Implementation::Node => "keep a 'data' listener and don't leave the call paused, or call.cancel()",
        Implementation::Tonic => "await stream.message() to its end, or drop the stream",
        Implementation::DotNet => "await ResponseStream.MoveNext(...) to its end, or dispose of the call",
        Implementation::Other => "",
    }
}

fn authority(agent: Implementation) -> &'static str {
    match agent {
        Implementation::Go => "grpc.WithAuthority(\"localhost\")",
        Implementation::Java => ".overrideAuthority(\"localhost\")",
        Implementation::Python => "option (\"grpc.default_authority\", \"localhost\")",
        Implementation::Node => "option 'grpc.default_authority': 'localhost'",
        Implementation::Tonic => ".origin(\"http://localhost\".parse()?)",
        Implementation::DotNet => "GrpcChannel.ForAddress(\"http://localhost\", ...)",
        Implementation::Other => "",
    }
}

fn streams(agent: Implementation) -> &'static str {
    match agent {
        Implementation::Go => "a second grpc.NewClient(...) for long streams",
        Implementation::Java => "a second ManagedChannel for long streams",
        Implementation::Python => {
            "a second channel with the option (\"grpc.use_local_subchannel_pool\", 1): without it both share one \
             connection"
        }
        Implementation::Node => {
            "a second client with the option 'grpc.use_local_subchannel_pool': 1: without it both share one \
             connection"
        }
        Implementation::Tonic => "a second Endpoint::connect(): clones of a Channel share one connection",
        Implementation::DotNet => "EnableMultipleHttp2Connections = true of SocketsHttpHandler",
        Implementation::Other => "",
    }
}

fn window(agent: Implementation) -> &'static str {
    match agent {
        Implementation::Go => {
            "remove grpc.WithInitialWindowSize and grpc.WithInitialConnWindowSize, which stop its window from \
             growing, or enlarge both"
        }
        Implementation::Java => {
            "NettyChannelBuilder: .initialFlowControlWindow(n) in place of .flowControlWindow(n), which stops its \
             window from growing"
        }
        Implementation::Python => {
            "remove (\"grpc.http2.bdp_probe\", 0), or set (\"grpc.http2.lookahead_bytes\", n)"
        }
        Implementation::Node => "option 'grpc-node.flow_control_window': n",
        Implementation::Tonic => {
            ".initial_stream_window_size(n) and .initial_connection_window_size(n), or .http2_adaptive_window(true)"
        }
        Implementation::DotNet => "InitialHttp2StreamWindowSize of SocketsHttpHandler",
        Implementation::Other => "",
    }
}

fn backoff(agent: Implementation) -> &'static str {
    match agent {
        Implementation::Go => {
            "a retryPolicy with initialBackoff in grpc.WithDefaultServiceConfig(...), in place of a loop"
        }
        Implementation::Java => {
            "a retryPolicy with initialBackoff in .defaultServiceConfig(...), in place of a loop"
        }
        Implementation::Python => {
            "a retryPolicy with initialBackoff in the option \"grpc.service_config\", in place of a loop"
        }
        Implementation::Node => {
            "a retryPolicy with initialBackoff in the option 'grpc.service_config', in place of a loop"
        }
        Implementation::Tonic => {
            "sleep before a call is repeated, doubling from 100 ms with jitter: tonic has no backoff of its own, \
             for calls or for connections"
        }
        Implementation::DotNet => "a RetryPolicy with InitialBackoff in ServiceConfig.MethodConfigs",
        Implementation::Other => "",
    }
}
