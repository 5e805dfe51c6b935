//! Join tokens as people have them: in files of any encoding, wrapped, quoted; or in the wrong place.
//!
//! No error repeats any part of a token, and none of a text that may be one.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use hopline_identity::{MAX_TOKEN_LEN, Token};
use zeroize::Zeroizing;

/// The longest text that is read for a token: UTF-16, and white space.
pub(crate) const MAX_TEXT: usize = 4 * MAX_TOKEN_LEN;

const PREFIX: &str = "hopline-join-";
/// From so many characters on, a text of the characters of tokens is taken for a part of one.
const SUSPICIOUS: usize = 100;

/// Why a text holds no token that could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("it is empty")]
    Empty,
    #[error("it is not text, neither UTF-8 nor UTF-16")]
    NotText,
    #[error("it is too long for a join token")]
    TooLong,
    #[error("it holds more than one join token; each joins its own machine")]
    Several,
    #[error("there is something beside the join token in it; keep the token alone")]
    Beside,
    #[error("its upper and lower case letters were changed on the way; copy it again")]
    Case,
    #[error("it is no join token: one begins with hopline-join-1.")]
    NoToken,
}

/// What a file or stdin gave, as the one word that a token is: without marks of an encoding, white space, line breaks
/// or the quotes around it.
pub(crate) fn read(bytes: &[u8]) -> Result<Zeroizing<String>, Unreadable> {
    if bytes.len() > MAX_TEXT {
        return Err(Unreadable::TooLong);
    }
    let text = decode(bytes)?;
    // Soft line breaks of mail and of shells end a line in these.
    let lines = text.lines().map(|line| line.trim_matches(is_around).trim_end_matches(['=', '\\']));
    let mut word = Zeroizing::new(String::with_capacity(text.len()));
    word.extend(lines.flat_map(str::chars).filter(|c| !is_blank(*c)));
    if word.is_empty() {
        return Err(Unreadable::Empty);
    }
    let found = word.matches(PREFIX).count();
    if found > 1 {
        return Err(Unreadable::Several);
    }
    if !word.starts_with(PREFIX) {
        let is_begin = word.get(..PREFIX.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(PREFIX));
        return Err(match found {
            0 if is_begin => Unreadable::Case,
            0 => Unreadable::NoToken,
            _ => Unreadable::Beside,
        });
    }
    if !word.chars().all(is_token_char) {
        return Err(Unreadable::Beside);
    }
    Ok(word)
}

fn decode(bytes: &[u8]) -> Result<Zeroizing<String>, Unreadable> {
    let units = |of: fn([u8; 2]) -> u16, bytes: &[u8]| {
        let units = bytes.chunks_exact(2).map(|pair| of([pair[0], pair[1]]));
        let text: Result<String, _> = char::decode_utf16(units).collect();
        text.map(Zeroizing::new).map_err(|_| Unreadable::NotText)
    };
    match bytes {
        [0xff, 0xfe, rest @ ..] => units(u16::from_le_bytes, rest),
        [0xfe, 0xff, rest @ ..] => units(u16::from_be_bytes, rest),
        // Without a mark, plain letters have a zero beside them.
        [1..=255, 0, ..] => units(u16::from_le_bytes, bytes),
        [0, 1..=255, ..] => units(u16::from_be_bytes, bytes),
        _ => {
            let text = std::str::from_utf8(bytes).map_err(|_| Unreadable::NotText)?;
            Ok(Zeroizing::new(text.to_owned()))
        }
    }
}

fn is_token_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

/// White space, and what has no width: marks of an encoding, places where a line may break.
fn is_blank(c: char) -> bool {
    c.is_whitespace()
        || c.is_control()
        || matches!(c, '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}' | '\u{ad}')
}

/// What stands around a token that was quoted.
fn is_around(c: char) -> bool {
    is_blank(c) || matches!(c, '"' | '\'' | '`' | '“' | '”' | '‘' | '’' | '«' | '»' | '<' | '>' | ',' | ';')
}

/// A token that was given on the command line, where others can read it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exposed {
    /// Its id, if all of it is there.
    pub(crate) id: Option<String>,
}

impl Exposed {
    /// The first argument that is a join token, or a part of one.
    pub(crate) fn find(args: &[OsString]) -> Option<Self> {
        let place = args.iter().position(|arg| is_exposed(arg))?;
        // A token that was wrapped came as several arguments.
        let mut text = String::new();
        let id = args[place..].iter().find_map(|arg| {
            let arg = arg.to_string_lossy();
            let begin = if text.is_empty() { arg.find(PREFIX)? } else { 0 };
            text.extend(arg[begin..].chars().filter(|c| is_token_char(*c)));
            Some(text.parse::<Token>().ok()?.id().to_owned())
        });
        Some(Self { id })
    }

    /// What to do about it.
    pub(crate) fn advice(&self) -> String {
        let revoke = match &self.id {
            Some(id) => format!("hopline token revoke {id}"),
            None => "hopline token list, then hopline token revoke ID".to_owned(),
        };
        format!(
            "a join token was given as an argument, where other users of this machine and the shell's history can read \
             it; nothing was done with it. Revoke it at the relay ({revoke}), make a new one, and give that in a file or \
             on stdin: hopline join FILE, or hopline join -"
        )
    }
}

fn is_exposed(arg: &OsStr) -> bool {
    let text = arg.to_string_lossy();
    let value = text.rsplit('=').next().unwrap_or(&text).trim_matches(is_around);
    let begins = value.starts_with(PREFIX) || text.starts_with(PREFIX);
    let holds = text.match_indices(PREFIX).any(|(at, _)| {
        let rest = &text[at + PREFIX.len()..];
        rest.split_once('.').is_some_and(|(version, body)| version.parse::<u32>().is_ok() && !body.is_empty())
    });
    let may_be = value.len() >= SUSPICIOUS && value.chars().all(is_token_char);
    // A file may be called as it likes.
    (begins || holds || may_be) && !Path::new(arg).exists() && !Path::new(value).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "hopline-join-1.CgxyZWxheS5leGFtcGxl-_0";

    fn utf16(text: &str, of: fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(of).collect()
    }

    #[test]
    fn tokens_are_read_as_people_have_them() {
        let (begin, end) = TOKEN.split_at(20);
        let mut cases: Vec<Vec<u8>> = [
            TOKEN.to_owned(),
            format!("{TOKEN}\n"),
            format!("{TOKEN}\r\n"),
            format!("\u{feff}{TOKEN}\n"),
            format!("  \t{TOKEN}  \n\n"),
            format!("\"{TOKEN}\"\n"),
            format!("'{TOKEN}'"),
            format!("`{TOKEN}`"),
            format!("“{TOKEN}”"),
            format!("\u{feff}\"{TOKEN}\"\r\n"),
            format!("{begin}\n{end}\n"),
            format!("{begin}\r\n  {end}\r\n"),
            format!("> {begin}\n> {end}\n"),
            format!("{begin}=\r\n{end}\r\n"),
            format!("{begin}\\\n{end}"),
            format!("{begin}\u{200b}{end}\u{a0}"),
            format!("{TOKEN}\0"),
        ]
        .map(String::into_bytes)
        .into();
        for text in [TOKEN.to_owned(), format!("{TOKEN}\r\n"), format!("\u{feff}\"{TOKEN}\"\r\n")] {
            cases.push(utf16(&text, u16::to_le_bytes));
            cases.push(utf16(&text, u16::to_be_bytes));
            // A newline of one byte behind it all.
            cases.push([utf16(&text, u16::to_le_bytes), b"\n".to_vec()].concat());
        }
        assert_eq!(cases.len(), 26);
        for case in cases {
            assert_eq!(read(&case).as_deref().map(String::as_str), Ok(TOKEN), "{case:?}");
        }
    }

    #[test]
    fn what_is_no_token_is_called_what_it_is() {
        let long = vec![b'a'; MAX_TEXT + 1];
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        let cases: [(Vec<u8>, Unreadable); 11] = [
            (Vec::new(), Unreadable::Empty),
            (b"\xef\xbb\xbf\r\n".to_vec(), Unreadable::Empty),
            (b"\"\"\n".to_vec(), Unreadable::Empty),
            (vec![0xff, 0xfe], Unreadable::Empty),
            (vec![0x80, 0x81, 0x82], Unreadable::NotText),
            (long, Unreadable::TooLong),
            (format!("{TOKEN}\n{TOKEN}\n").into(), Unreadable::Several),
            (format!("token: {TOKEN}\n").into(), Unreadable::Beside),
            (format!("{TOKEN} # web-1\n").into(), Unreadable::Beside),
            (TOKEN.to_ascii_uppercase().into(), Unreadable::Case),
            (key.into(), Unreadable::NoToken),
        ];
        for (bytes, why) in cases {
            assert_eq!(read(&bytes), Err(why), "{:?}", String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn a_token_among_the_arguments_is_found_wherever_it_stands() {
        let whole = "A".repeat(SUSPICIOUS);
        for arg in [
            TOKEN.to_owned(),
            format!("--token={TOKEN}"),
            format!("--name={TOKEN}"),
            format!("-c{TOKEN}"),
            format!("\"{TOKEN}\""),
            format!("./{TOKEN}"),
            format!("web:{TOKEN}"),
            "hopline-join-".to_owned(),
            "hopline-join-2.AAAA".to_owned(),
            whole.clone(),
            format!("--token={whole}"),
            format!("join-1.{whole}"),
        ] {
            let args = ["join", &arg].map(OsString::from);
            let found = Exposed::find(&args).unwrap_or_else(|| panic!("{arg}"));
            assert!(
                !found.advice().contains("AAAA") && !found.advice().contains("Cgxy"),
                "{}",
                found.advice()
            );
        }
        for arg in [
            "",
            "-",
            "ledger",
            "relay.example:7443",
            "--publish",
            "batch-*",
            "hopline-join",
            "/etc/hopline.yaml",
        ] {
            assert_eq!(Exposed::find(&[OsString::from(arg)]), None, "{arg}");
        }
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("hopline-join-1.txt");
        std::fs::write(&file, TOKEN).unwrap();
        assert_eq!(Exposed::find(&[file.into_os_string()]), None, "a file may be called so");
    }
}
