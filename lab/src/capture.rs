//! Packet captures: `tcpdump` on a host, and the TCP payload in what it wrote.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::Signal;

use crate::hosts::Net;
use crate::process::{Process, Start};
use crate::shell::until;

/// A running capture.
#[derive(Debug)]
pub(crate) struct Capture {
    process: Process,
    file: PathBuf,
}

/// One TCP segment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Segment {
    /// Seconds since 1970.
    pub(crate) at_s: f64,
    pub(crate) from_port: u16,
    pub(crate) payload: u64,
}

impl Capture {
    /// Captures TCP of a port on a host's interface; captures when it returns.
    ///
    /// # Errors
    ///
    /// When tcpdump does not start.
    pub(crate) fn start(
        net: &Net,
        host: &str,
        interface: &str,
        port: u16,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let file = folder.join("capture.pcap");
        let filter = format!("tcp port {port}");
        let path = file.display().to_string();
        let words = [
            "tcpdump", "-i", interface, "-Z", "root", "-s", "128", "-B", "16384", "-U", "-w", &path, &filter,
        ];
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let process = Process::start(net, host, "tcpdump", folder, &words, &Start::default())?;
        until("tcpdump", Duration::from_secs(10), || {
            process.last_words().contains("listening on").then_some(())
        })?;
        Ok(Self { process, file })
    }

    /// Ends the capture and gives its segments.
    ///
    /// # Errors
    ///
    /// When packets were lost, or the file is no capture.
    pub(crate) fn finish(mut self) -> anyhow::Result<Vec<Segment>> {
        self.process.signal(Signal::INT)?;
        self.process.wait(Duration::from_secs(10))?;
        let words = self.process.last_words();
        if !words.contains("\n0 packets dropped by kernel") {
            bail!("tcpdump: {words}");
        }
        segments(&std::fs::read(&self.file)?)
    }
}

/// Reads a capture file of Ethernet frames, as tcpdump writes it on this machine.
///
/// # Errors
///
/// When it is none.
fn segments(file: &[u8]) -> anyhow::Result<Vec<Segment>> {
    let word =
        |at: usize| -> Option<u32> { Some(u32::from_le_bytes(file.get(at..at + 4)?.try_into().ok()?)) };
    if word(0) != Some(0xa1b2_c3d4) || word(20) != Some(1) {
        bail!("not a capture of Ethernet frames");
    }
    let mut segments = Vec::new();
    let mut at = 24;
    while at < file.len() {
        let (seconds, micros, length) = word(at)
            .zip(word(at + 4))
            .zip(word(at + 8))
            .map(|((a, b), c)| (a, b, c))
            .context("a header cut off")?;
        at += 16;
        let end = at + usize::try_from(length)?;
        let frame = file.get(at..end).context("a frame cut off")?;
        at = end;
        if let Some((from_port, payload)) = tcp(frame) {
            let at_s = f64::from(seconds) + f64::from(micros) / 1e6;
            segments.push(Segment { at_s, from_port, payload });
        }
    }
    Ok(segments)
}

/// Source port and length of the payload, of an IPv4 frame with TCP.
fn tcp(frame: &[u8]) -> Option<(u16, u64)> {
    let short = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    if short(12)? != 0x0800 || *frame.get(23)? != 6 {
        return None;
    }
    let header = usize::from(frame.get(14)? & 15) * 4;
    let start = 14 + header;
    let own = usize::from(frame.get(start + 12)? >> 4) * 4;
    let payload = usize::from(short(16)?).checked_sub(header + own)?;
    Some((short(start)?, payload as u64))
}

/// The payload in (`from_s`, `from_s + 20`], and the most in any 20 s after `from_s`.
pub(crate) fn in_20_s(segments: &[Segment], from_s: f64) -> (u64, u64) {
    let sum = |from: f64, inclusive: bool| -> u64 {
        let inside = |segment: &&Segment| {
            let after = segment.at_s > from || (inclusive && segment.at_s >= from);
            after && segment.at_s <= from + 20.0
        };
        segments.iter().filter(inside).map(|segment| segment.payload).sum()
    };
    let starts = segments.iter().map(|segment| segment.at_s).filter(|&at_s| at_s > from_s);
    (sum(from_s, false), starts.map(|at_s| sum(at_s, true)).max().unwrap_or_default())
}

/// When the last segment with payload came before payload paused for `gap_s`.
pub(crate) fn last_before_gap(segments: &[Segment], gap_s: f64) -> Option<f64> {
    let times: Vec<f64> = segments.iter().filter(|segment| segment.payload > 0).map(|s| s.at_s).collect();
    times.windows(2).find(|pair| pair[1] - pair[0] > gap_s).map(|pair| pair[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at_s: f64, payload: u64) -> Segment {
        Segment { at_s, from_port: 1, payload }
    }

    #[test]
    fn windows_of_20_s() {
        let all =
            [at(1.0, 500), at(6.0, 26), at(6.1, 26), at(11.0, 52), at(16.0, 52), at(21.5, 52), at(26.0, 52)];
        assert_eq!(in_20_s(&all, 1.0), (156, 260));
        assert_eq!(last_before_gap(&all, 3.0), Some(1.0));
        assert_eq!(last_before_gap(&all[..1], 3.0), None);
    }

    #[test]
    fn a_frame_is_counted_by_its_payload() {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0]);
        frame.extend(57u16.to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 6, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
        frame.extend(7_443u16.to_be_bytes());
        frame.extend([0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x18]);
        assert_eq!(tcp(&frame), Some((7_443, 5)));
        let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1];
        file.extend([0; 16]);
        file.extend([1, 0, 0, 0]);
        file.extend([3, 0, 0, 0, 0x20, 0xa1, 7, 0]);
        file.extend(u32::try_from(frame.len()).unwrap().to_le_bytes());
        file.extend([0; 4]);
        file.extend(&frame);
        let read = segments(&file).unwrap();
        assert_eq!(read, [Segment { at_s: 3.5, from_port: 7_443, payload: 5 }]);
        assert!(segments(&file[..file.len() - 1]).is_err());
        assert!(segments(&file[1..]).is_err());
    }
}
