//! Certificate authority, join tokens, machine certificates and the TLS configurations made from them.
