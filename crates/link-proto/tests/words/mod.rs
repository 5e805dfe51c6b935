//! Frames as words and back: a second implementation of the wire's layouts, written from `WIRE.md` and sharing
//! nothing with the code under test.
//!
//! ```text
//! hello 1..1 instance=000102030405060708090a0b0c0d0e0f interval=5000 early=16384 name="x" 99:c0ffee
//! open 1 "header"          answer 1 +49152 "header"     data 1 "bytes"      data 1 5000*x    end 1
//! end-ack 1                credit 1 +16384              abort 1 timeout hops=0 "why" silent=15000 9:00
//! goodbye shutdown hops=0 "why"     ping 7     pong 7    presence   drain 10000   ext 40 c0ffee   hex 0b
//! ```

use std::fmt::Write as _;

use hopline_link_proto::Code;

/// Names and numbers of a hello's fields that hold one number.
const NUMBERS: [(&str, u64); 5] =
    [("interval", 2), ("timeout", 3), ("early", 4), ("sessions", 5), ("header", 6)];

/// The bytes of one frame that is written as words.
///
/// # Panics
/// On words that it does not know.
pub(crate) fn encode(words: &str) -> Vec<u8> {
    let parts = split(words);
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let number = |at: usize| parse_number(parts[at]);
    let mut out = Vec::new();
    match parts[0] {
        "hex" => return parts[1..].iter().flat_map(|part| unhex(part)).collect(),
        "hello" => {
            let body = hello_body(&parts[1..]);
            out.push(0x01);
            put_slice(&mut out, &body);
        }
        "open" => {
            head(&mut out, 0x02, number(1));
            put_slice(&mut out, &text(parts[2]));
        }
        "answer" => {
            head(&mut out, 0x03, number(1));
            put(&mut out, number(2));
            put_slice(&mut out, &text(parts[3]));
        }
        "data" => {
            head(&mut out, 0x04, number(1));
            put_slice(&mut out, &text(parts[2]));
        }
        "end" => head(&mut out, 0x05, number(1)),
        "end-ack" => head(&mut out, 0x06, number(1)),
        "credit" => {
            head(&mut out, 0x07, number(1));
            put(&mut out, number(2));
        }
        "abort" | "goodbye" => {
            let (id, rest) = if parts[0] == "abort" { (number(1), &parts[2..]) } else { (0, &parts[1..]) };
            head(&mut out, 0x08, id);
            put_slice(&mut out, &abort_body(rest));
        }
        "ping" => out.extend([0x09, number(1) as u8]),
        "pong" => out.extend([0x0a, number(1) as u8]),
        "presence" => out.push(0x0b),
        "drain" => {
            let mut body = Vec::new();
            put(&mut body, number(1));
            body.extend(parts[2..].iter().flat_map(|part| unhex(part)));
            out.push(0x0c);
            put_slice(&mut out, &body);
        }
        "ext" => {
            out.extend(unhex(parts[1]));
            put_slice(&mut out, &text(parts[2]));
        }
        other => panic!("no frame is called {other:?}"),
    }
    out
}

fn hello_body(parts: &[&str]) -> Vec<u8> {
    let mut body = b"HOPL".to_vec();
    let Some((min, max)) = parts[0].split_once("..") else { panic!("versions: {:?}", parts[0]) };
    put(&mut body, parse_number(min));
    put(&mut body, parse_number(max));
    for part in &parts[1..] {
        if let Some((key, value)) = part.split_once('=') {
            let (field, value) = match (key, NUMBERS.iter().find(|(name, _)| *name == key)) {
                (_, Some((_, field))) => (*field, number_bytes(parse_number(value))),
                ("instance", None) => (1, unhex(value)),
                ("name", None) => (7, text(value)),
                (_, None) => panic!("no field of a hello is called {key:?}"),
            };
            put(&mut body, field);
            put_slice(&mut body, &value);
        } else {
            put_raw_field(&mut body, part);
        }
    }
    body
}

fn abort_body(parts: &[&str]) -> Vec<u8> {
    let Some(code) = code_number(parts[0]) else { panic!("no code is called {:?}", parts[0]) };
    let mut body = Vec::new();
    put(&mut body, code);
    put(&mut body, parse_number(parts[1].trim_start_matches("hops=")));
    put_slice(&mut body, &text(parts[2]));
    for part in &parts[3..] {
        if let Some(silent) = part.strip_prefix("silent=") {
            put(&mut body, 1);
            put_slice(&mut body, &number_bytes(parse_number(silent)));
        } else {
            put_raw_field(&mut body, part);
        }
    }
    body
}

fn code_number(word: &str) -> Option<u64> {
    let known = Code::from_name(word).map(|code| u64::from(code.number()));
    known.or_else(|| word.strip_prefix("unknown_")?.parse().ok())
}

/// `99:c0ffee`
fn put_raw_field(body: &mut Vec<u8>, part: &str) {
    let Some((field, value)) = part.split_once(':') else { panic!("no field: {part:?}") };
    put(body, parse_number(field));
    put_slice(body, &unhex(value));
}

/// The first frame of some bytes as words, and its length; `None` if the bytes end before it does.
///
/// # Panics
/// On what is no frame: the link under test never sends such.
pub(crate) fn decode(bytes: &[u8]) -> Option<(String, usize)> {
    let mut at = 1;
    let kind = *bytes.first()?;
    let mut words = String::new();
    let session = |at: &mut usize| take_number(bytes, at);
    match kind {
        0x01 => hello_words(&mut words, take_slice(bytes, &mut at)?),
        0x02 => {
            let _ = write!(words, "open {} {}", session(&mut at)?, quote(take_slice(bytes, &mut at)?));
        }
        0x03 => {
            let (id, credit) = (session(&mut at)?, take_number(bytes, &mut at)?);
            let _ = write!(words, "answer {id} +{credit} {}", quote(take_slice(bytes, &mut at)?));
        }
        0x04 => {
            let _ = write!(words, "data {} {}", session(&mut at)?, quote(take_slice(bytes, &mut at)?));
        }
        0x05 => words = format!("end {}", session(&mut at)?),
        0x06 => words = format!("end-ack {}", session(&mut at)?),
        0x07 => words = format!("credit {} +{}", session(&mut at)?, take_number(bytes, &mut at)?),
        0x08 => {
            match session(&mut at)? {
                0 => words.push_str("goodbye"),
                id => words = format!("abort {id}"),
            }
            abort_words(&mut words, take_slice(bytes, &mut at)?);
        }
        0x09 | 0x0a => {
            words = format!("{} {}", if kind == 9 { "ping" } else { "pong" }, bytes.get(at)?);
            at += 1;
        }
        0x0b => words.push_str("presence"),
        0x0c => {
            let body = take_slice(bytes, &mut at)?;
            words = format!("drain {}", whole(body));
        }
        other => panic!("the link sent a frame of type {other:#04x}"),
    }
    Some((words, at))
}

/// How many bytes of its payload a data frame's head announces, and the head's length.
pub(crate) fn data_head(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut at = 1;
    (*bytes.first()? == 0x04).then_some(())?;
    take_number(bytes, &mut at)?;
    Some((take_number(bytes, &mut at)?, at))
}

fn hello_words(words: &mut String, body: &[u8]) {
    assert!(body.starts_with(b"HOPL"));
    let mut at = 4;
    let version = |at: &mut usize| take_number(body, at).unwrap_or_else(|| panic!("a hello's version"));
    let _ = write!(words, "hello {}..{}", version(&mut at), version(&mut at));
    while at < body.len() {
        let (field, value) = take_field(body, &mut at);
        let _ = match NUMBERS.iter().find(|(_, number)| *number == field) {
            Some((name, _)) => write!(words, " {name}={}", whole(value)),
            None if field == 1 => write!(words, " instance={}", hex(value)),
            None if field == 7 => write!(words, " name={}", quote(value)),
            None => write!(words, " {field}:{}", hex(value)),
        };
    }
}

fn abort_words(words: &mut String, body: &[u8]) {
    let mut at = 0;
    let mut number = || take_number(body, &mut at).unwrap_or_else(|| panic!("an abort's number"));
    let code = u32::try_from(number()).ok().and_then(Code::from_number);
    let Some(code) = code else { panic!("the link sent an abort without a code") };
    let _ = write!(words, " {code} hops={}", number());
    let message = take_slice(body, &mut at).unwrap_or_else(|| panic!("an abort's message"));
    let _ = write!(words, " {}", quote(message));
    while at < body.len() {
        let (field, value) = take_field(body, &mut at);
        let _ = match field {
            1 => write!(words, " silent={}", whole(value)),
            _ => write!(words, " {field}:{}", hex(value)),
        };
    }
}

fn take_field<'a>(body: &'a [u8], at: &mut usize) -> (u64, &'a [u8]) {
    match (take_number(body, at), take_slice(body, at)) {
        (Some(field), Some(value)) => (field, value),
        _ => panic!("a field that ends early"),
    }
}

fn take_number(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    panic!("a number of more than nine bytes")
}

fn take_slice<'a>(bytes: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
    let len = usize::try_from(take_number(bytes, at)?).ok()?;
    let slice = bytes.get(*at..*at + len)?;
    *at += len;
    Some(slice)
}

fn whole(value: &[u8]) -> u64 {
    let mut at = 0;
    match take_number(value, &mut at) {
        Some(number) if at == value.len() => number,
        _ => panic!("a field's number: {value:02x?}"),
    }
}

/// Appends a number in its shortest form.
pub(crate) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn number_bytes(number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, number);
    out
}

fn put_slice(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn head(out: &mut Vec<u8>, kind: u8, id: u64) {
    out.push(kind);
    put(out, id);
}

/// Words between spaces; a space inside quotes separates nothing.
pub(crate) fn split(line: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quoted = false;
    for c in line.trim().chars() {
        quoted ^= c == '"';
        match parts.last_mut() {
            Some(part) if c != ' ' || quoted => part.push(c),
            Some(part) if part.is_empty() => {}
            _ => parts.push(String::new()),
        }
    }
    parts
}

pub(crate) fn parse_number(text: &str) -> u64 {
    let text = text.trim_start_matches('+');
    text.parse().unwrap_or_else(|_| panic!("no number: {text:?}"))
}

/// `"quoted"`, `5000*x` or hex.
pub(crate) fn text(word: &str) -> Vec<u8> {
    if let Some(inner) = word.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        return inner.as_bytes().to_vec();
    }
    match word.split_once('*') {
        Some((count, byte)) => byte.as_bytes().repeat(parse_number(count) as usize),
        None => unhex(word),
    }
}

/// What [`text`] reads.
pub(crate) fn quote(bytes: &[u8]) -> String {
    let plain = |byte: &u8| matches!(byte, b' '..=b'~') && *byte != b'"';
    match bytes.first() {
        Some(first) if bytes.len() > 40 && plain(first) && bytes.iter().all(|byte| byte == first) => {
            format!("{}*{}", bytes.len(), char::from(*first))
        }
        _ if bytes.iter().all(plain) => format!("\"{}\"", String::from_utf8_lossy(bytes)),
        _ => hex(bytes),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn unhex(word: &str) -> Vec<u8> {
    assert!(word.len().is_multiple_of(2), "odd hex: {word:?}");
    let digits = |at: usize| u8::from_str_radix(&word[at..at + 2], 16);
    (0..word.len()).step_by(2).map(|at| digits(at).unwrap_or_else(|_| panic!("no hex: {word:?}"))).collect()
}
