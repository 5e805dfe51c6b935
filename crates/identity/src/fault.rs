//! What an error of TLS or TCP is called before people. Libraries explain theirs to programmers.

use std::io;

use rustls::CertificateError;

/// What went wrong with a connection, in words for a person.
#[must_use]
pub fn connection_fault(error: &io::Error) -> String {
    if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        return tls_fault(tls);
    }
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return "the other end closed the connection".to_owned();
    }
    error.to_string()
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the library may name any error; these are the ones people meet"
)]
fn tls_fault(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidMessage(_) | rustls::Error::InappropriateMessage { .. } => {
            "what answers there does not speak TLS as a relay does; is the address right?".to_owned()
        }
        rustls::Error::InvalidCertificate(fault) => certificate_fault(fault).to_owned(),
        rustls::Error::AlertReceived(alert) => format!("the other end refused the TLS handshake ({alert:?})"),
        other => without_links(&other.to_string()),
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the library may name any fault; these are the ones people meet"
)]
fn certificate_fault(fault: &CertificateError) -> &'static str {
    match fault {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the other end's certificate has expired, or this machine's clock is wrong"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the other end's certificate is not valid yet, or this machine's clock is wrong"
        }
        CertificateError::UnknownIssuer => "the other end's certificate is of another authority",
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the other end's certificate is not a relay's"
        }
        CertificateError::Revoked => "the other end's certificate was revoked",
        _ => "the other end's certificate can't be verified",
    }
}

/// A text without the addresses of documentation in it.
fn without_links(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| !word.contains("://"));
    words.collect::<Vec<_>>().join(" ").trim_end_matches(':').to_owned()
}

#[cfg(test)]
mod tests {
    use rustls::{AlertDescription, InvalidMessage};

    use super::*;

    #[test]
    fn no_error_sends_people_to_a_library() {
        let link =
            "peer closed connection without sending TLS close_notify: https://docs.rs/rustls/latest/x#y";
        let of = |error: rustls::Error| connection_fault(&io::Error::new(io::ErrorKind::InvalidData, error));
        for (text, wanted) in [
            (connection_fault(&io::Error::new(io::ErrorKind::UnexpectedEof, link)), "closed the connection"),
            (of(rustls::Error::General(link.to_owned())), "without sending TLS close_notify"),
            (of(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)), "does not speak TLS"),
            (of(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)), "another authority"),
            (of(rustls::Error::InvalidCertificate(CertificateError::BadSignature)), "can't be verified"),
            (of(rustls::Error::AlertReceived(AlertDescription::AccessDenied)), "refused"),
            (connection_fault(&io::ErrorKind::ConnectionRefused.into()), "connection refused"),
        ] {
            assert!(text.contains(wanted) && !text.contains("://") && !text.contains("rustls"), "{text}");
        }
    }
}
