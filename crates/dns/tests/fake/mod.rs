//! A name server on loopback that says what it is told to.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

/// What is said of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Addresses of IPv4, and their TTL in seconds; none of IPv6.
    V4(Vec<Ipv4Addr>, u32),
    /// As `V4`, but queries for IPv6 get no answer at all.
    V4Alone(Vec<Ipv4Addr>, u32),
    NoSuchName,
    ServFail,
    Nothing,
}

#[derive(Debug, Default)]
struct State {
    names: BTreeMap<String, Reply>,
    /// Queries for IPv4 addresses, without those that were written again.
    asked: Vec<(u16, String)>,
    datagrams: usize,
}

#[derive(Debug)]
pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl Fake {
    pub(crate) async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let state = Arc::<Mutex<State>>::default();
        let of_task = Arc::clone(&state);
        let task = tokio::spawn(async move {
            let mut query = [0; 4_096];
            loop {
                let (length, from) = socket.recv_from(&mut query).await.unwrap();
                let reply = answer(&query[..length], &mut of_task.lock().unwrap());
                if let Some(reply) = reply {
                    socket.send_to(&reply, from).await.unwrap();
                }
            }
        });
        Self { address, state, task }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// What is said of `name` from now on; of other names it is that there is none such.
    pub(crate) fn say(&self, name: &str, reply: Reply) {
        self.state().names.insert(name.to_owned(), reply);
    }

    /// The names that were asked for, once for each query.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.state().asked.iter().map(|(_, name)| name.clone()).collect()
    }

    pub(crate) fn datagrams(&self) -> usize {
        self.state().datagrams
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn answer(query: &[u8], state: &mut State) -> Option<Vec<u8>> {
    state.datagrams += 1;
    let (mut name, mut at) = (String::new(), 12);
    while query[at] != 0 {
        let label = &query[at + 1..=at + usize::from(query[at])];
        name.push_str(std::str::from_utf8(label).unwrap());
        name.push('.');
        at += label.len() + 1;
    }
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let is_v4 = query[at + 2] == 1;
    let question = &query[12..at + 5];
    let id = u16::from_be_bytes([query[0], query[1]]);
    if is_v4 && !state.asked.contains(&(id, name.clone())) {
        state.asked.push((id, name.clone()));
    }
    let reply = state.names.get(&name).cloned().unwrap_or(Reply::NoSuchName);
    let (code, addresses, ttl) = match reply {
        Reply::Nothing => return None,
        Reply::V4Alone(..) if !is_v4 => return None,
        Reply::NoSuchName => (3, Vec::new(), 0),
        Reply::ServFail => (2, Vec::new(), 0),
        Reply::V4(..) if !is_v4 => (0, Vec::new(), 0),
        Reply::V4(addresses, ttl) | Reply::V4Alone(addresses, ttl) => (0, addresses, ttl),
    };
    let mut out = vec![query[0], query[1], 0x81, 0x80 | code, 0, 1, 0, addresses.len() as u8, 0, 0, 0, 0];
    out.extend_from_slice(question);
    for address in addresses {
        out.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1]);
        out.extend_from_slice(&ttl.to_be_bytes());
        out.extend_from_slice(&[0, 4]);
        out.extend_from_slice(&address.octets());
    }
    Some(out)
}
