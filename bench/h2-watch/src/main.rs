//! What watching costs: nanoseconds for each frame of the worst mixes, megabytes a second of bulk data, and our decoder
//! of header blocks beside `loona-hpack`. Each row is the median of 9 runs, with the least and the most, in time of the
//! processor: what else the machine does hardly matters.
//!
//! ```sh
//! cd bench/h2-watch && cargo run --release
//! ```

use std::hint::black_box;
use std::time::{Duration, Instant};

use hopline_h2_watch::testkit::HeaderReader;
use hopline_h2_watch::{Inspect, Limits, MappingWatch};
use rustix::time::{ClockId, clock_gettime};

const RUNS: usize = 9;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// A request of grpc-go, its values in its table already or literal without being kept.
fn request(stream: u32) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    let fields = [(":path", "/a.B/Get"), ("content-type", "application/grpc"), ("grpc-timeout", "1999986u")];
    for (name, value) in fields {
        block.extend_from_slice(&[0, name.len() as u8]);
        block.extend_from_slice(name.as_bytes());
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    }
    frame(1, 4, stream, &block)
}

/// Bytes of one side, in order, and in pieces of so many.
struct Load {
    client: Vec<u8>,
    server: Vec<u8>,
    piece: usize,
    frames: usize,
}

/// Time that this thread has had the processor.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Median, least and most of the runs.
fn measure(mut run: impl FnMut() -> Duration) -> [Duration; 3] {
    run();
    let mut times: Vec<Duration> = (0..RUNS).map(|_| run()).collect();
    times.sort();
    [times[RUNS / 2], times[0], times[RUNS - 1]]
}

fn watch(load: &Load) -> Duration {
    let began = Instant::now();
    let mut mapping = MappingWatch::new(true, Limits::default(), began);
    let mut watcher = mapping.connect(began);
    let settings = frame(4, 0, 0, &[]);
    watcher.handle_from_client(&[PREFACE, &settings].concat(), began);
    watcher.handle_from_server(&settings, began);
    watcher.handle_from_client(&request(1), began);
    let start = cpu();
    for piece in load.client.chunks(load.piece) {
        watcher.handle_from_client(black_box(piece), began);
    }
    for piece in load.server.chunks(load.piece) {
        watcher.handle_from_server(black_box(piece), began);
    }
    let took = cpu() - start;
    assert_eq!(watcher.inspect(), Inspect::H2c);
    mapping.fold(&mut watcher, began);
    took
}

fn row(name: &str, load: &Load) {
    let bytes = load.client.len() + load.server.len();
    let [median, least, most] = measure(|| watch(load)).map(|time| time.as_secs_f64());
    let frames = load.frames as f64;
    println!(
        "{name:<58} {:>8.1} ns/frame ({:.1} to {:.1}) {:>9.0} MB/s",
        median * 1e9 / frames,
        least * 1e9 / frames,
        most * 1e9 / frames,
        bytes as f64 / median / 1e6
    );
}

fn repeated(one: &[u8], count: usize) -> Vec<u8> {
    one.repeat(count)
}

fn rows() {
    const COUNT: usize = 200_000;
    let byte = frame(0, 0, 1, &[0]);
    let load = |client, server, piece, frames| Load { client, server, piece, frames };
    row("data of 1 byte, to the server", &load(repeated(&byte, COUNT), vec![], 65_536, COUNT));
    row("data of 1 byte, to the application", &load(vec![], repeated(&byte, COUNT), 65_536, COUNT));
    row("the same, in pieces of 1 byte", &load(vec![], repeated(&byte, COUNT), 1, COUNT));
    let trailers = frame(1, 4, 1, &[0x88]);
    row("headers of one indexed field", &load(vec![], repeated(&trailers, COUNT), 65_536, COUNT));
    let many = frame(1, 4, 1, &[0x88; 16_000]);
    let (blocks, fields) = (200, 16_000 * 200);
    row(
        "a field of a block of 16,000 indexed fields",
        &load(vec![], repeated(&many, blocks), 65_536, fields),
    );
    let update = frame(8, 0, 1, &[0, 0, 0, 1]);
    row("window updates", &load(repeated(&update, COUNT), vec![], 65_536, COUNT));
    let settings = frame(4, 0, 0, &[0, 4, 0, 0, 0xff, 0xff].repeat(2_000));
    row("a setting of a frame of 2,000", &load(repeated(&settings, 100), vec![], 65_536, 200_000));
    let streams = 1_000;
    let opened: Vec<u8> = (1..=streams).flat_map(|stream| request(1 + 2 * stream)).collect();
    let ended: Vec<u8> = (1..=streams).flat_map(|stream| frame(1, 5, 1 + 2 * stream, &[0x88])).collect();
    row("1,000 calls opened, then ended", &load(opened, ended, 65_536, 2_000));
    let mut bulk = frame(0, 0, 1, &[0; 16_384]);
    // One message of a gigabyte: nothing inside is looked at.
    bulk[10] = 0x40;
    row("bulk data in frames of 16 KiB", &load(vec![], repeated(&bulk, 4_000), 65_536, 4_000));
}

fn decoders() {
    let string = [0x41, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
    let hostile = [0x00, 0x81, 0x07, 0x81, 0x07].repeat(3_276);
    let indexed = [0x82; 16_384];
    let cases: [(&str, &[u8], u32); 3] = [
        ("a Huffman field of 15 bytes that is kept", &string, 1),
        ("a block of 16 KiB of Huffman strings of 1 byte", &hostile, 3_276),
        ("a block of 16 KiB of indexed fields", &indexed, 16_384),
    ];
    println!("\n{:<58} {:>12} {:>14}", "decoders, ns/field", "ours", "loona-hpack");
    for (name, block, fields) in cases {
        let times = (4_096 / fields).max(1);
        let (mut ours, mut theirs) = (HeaderReader::default(), loona_hpack::Decoder::new());
        let mine = measure(|| {
            let start = cpu();
            (0..times).for_each(|_| assert!(ours.pass(black_box(block))));
            cpu() - start
        });
        let other = measure(|| {
            let start = cpu();
            (0..times).for_each(|_| {
                let mut bytes = 0;
                let read =
                    theirs.decode_with_cb(black_box(block), |name, value| bytes += name.len() + value.len());
                assert!(read.is_ok() && bytes > 0);
            });
            cpu() - start
        });
        let each = |time: Duration| time.as_secs_f64() * 1e9 / f64::from(times * fields);
        println!("{name:<58} {:>12.1} {:>14.1}", each(mine[0]), each(other[0]));
    }
}

fn main() {
    rows();
    decoders();
}
