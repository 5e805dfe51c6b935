//! The page at `/`: one HTML file that asks for `/status` each second and draws it.
//!
//! It needs nothing from elsewhere, and may load nothing: its policy allows the one script and the one style sheet that
//! are in it, by their hashes, and connections to the address that it came from. What the status says is put into it as
//! text only, since names and messages may come from a peer.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

const HEAD: &str = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
    <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
    <title>Hopline</title>\n<link rel=\"icon\" href=\"data:,\">\n";
const STYLE: &str = include_str!("page/page.css");
const BODY: &str = include_str!("page/page.html");
const SCRIPT: &str = include_str!("page/page.js");

/// The page as it is sent.
pub(crate) static PAGE: LazyLock<String> = LazyLock::new(|| {
    format!("{HEAD}<style>{STYLE}</style>\n</head>\n{BODY}<script>{SCRIPT}</script>\n</body>\n</html>\n")
});

/// What the page may do: its `Content-Security-Policy`.
pub(crate) static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; img-src data:; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
});

fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_no_other_address() {
        // The one exception is a name, not an address.
        let page = PAGE.replace("http://www.w3.org/2000/svg", "");
        for sign in ["http:", "https:", "src=", "url(", "@import", "//cdn"] {
            assert!(!page.contains(sign), "{sign} is in the page");
        }
    }

    #[test]
    fn no_markup_is_made_of_data() {
        for way in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "DOMParser",
            "createContextualFragment",
            "eval(",
            "new Function",
            "srcdoc",
            "javascript:",
            "setHTML",
            ".href",
        ] {
            assert!(!SCRIPT.contains(way), "{way} is in the script");
        }
        // Handlers and styles in attributes would need a policy that allows them.
        let handler = |word: &&str| word.starts_with("on") && word.contains('=');
        assert_eq!(BODY.split_whitespace().find(handler), None);
        assert!(!BODY.contains("style="));
        assert!(!SCRIPT.contains("</script") && !STYLE.contains("</style"));
    }

    #[test]
    fn the_policy_is_that_of_what_is_sent() {
        let script = PAGE.split("<script>").nth(1).and_then(|rest| rest.split("</script>").next()).unwrap();
        let style = PAGE.split("<style>").nth(1).and_then(|rest| rest.split("</style>").next()).unwrap();
        assert!(POLICY.contains(&format!("script-src '{}';", hash(script))));
        assert!(POLICY.contains(&format!("style-src '{}';", hash(style))));
        assert!(!POLICY.contains("unsafe"));
        assert_eq!(PAGE.matches("<script").count(), 1);
        // As any other tool says it.
        assert_eq!(hash("abc"), "sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
    }

    #[test]
    fn it_is_small() {
        assert!(PAGE.len() < 64 << 10, "{} bytes", PAGE.len());
    }
}
