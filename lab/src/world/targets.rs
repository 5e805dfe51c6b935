//! Where everybody listens and dials, and the config files that say so.

use std::fs;

use super::{RAW_PORT, SERVER_PORT, Way, World};

impl World {
    /// Writes the config files of agent and sidecar.
    ///
    /// # Errors
    ///
    /// When a file cannot be written.
    pub(super) fn write_files(&self) -> anyhow::Result<()> {
        let forward = match self.options.server {
            "db" => String::new(),
            host => format!(", forward: \"{}:{SERVER_PORT}\"", self.net.address(host)),
        };
        let agent = format!(
            "status: \"unix:{}\"\nkeepalive: {}\nservices:\n  lab: {{ grpc: {{ tcp: {SERVER_PORT}{forward} }} }}\n  \
             raw: {{ tcp: {{ tcp: {RAW_PORT}{} }} }}\n{}",
            self.status_socket("agent").display(),
            self.options.agent_keepalive,
            match self.options.server {
                "db" => String::new(),
                host => format!(", forward: \"{}:{RAW_PORT}\"", self.net.address(host)),
            },
            self.options.agent_lines,
        );
        let sidecar = format!(
            "status: \"unix:{}\"\nkeepalive: {}\nconnect:\n  lab: {{ listen: \"{}\"{} }}\n  nobody: {{ listen: \
             \"unix:{}\" }}\n  raw: {{ listen: \"{}\" }}\n{}",
            self.status_socket("sidecar").display(),
            self.options.sidecar_keepalive,
            self.mapping(),
            self.options.mapping_keys,
            self.path("nobody.sock"),
            self.raw_mapping(),
            self.options.sidecar_lines.replace("FOLDER", &self.folder.display().to_string()),
        );
        fs::write(self.path("agent.yaml"), agent)?;
        Ok(fs::write(self.path("sidecar.yaml"), sidecar)?)
    }

    fn mapping(&self) -> String {
        match self.options.way {
            Way::Tcp => "127.0.0.1:7901".to_owned(),
            Way::Unix | Way::Direct => format!("unix:{}", self.path("lab.sock")),
        }
    }

    fn raw_mapping(&self) -> String {
        match self.options.way {
            Way::Unix => format!("unix:{}", self.path("raw.sock")),
            Way::Tcp | Way::Direct => "127.0.0.1:7902".to_owned(),
        }
    }

    /// Where a raw client dials.
    pub(crate) fn raw_target(&self) -> String {
        match self.options.way {
            Way::Direct => self.raw_listen(),
            Way::Unix | Way::Tcp => self.raw_mapping(),
        }
    }

    /// Where a raw server listens, on its host.
    pub(crate) fn raw_listen(&self) -> String {
        match self.options.way {
            Way::Unix | Way::Tcp if self.options.server == "db" => format!("127.0.0.1:{RAW_PORT}"),
            Way::Direct | Way::Unix | Way::Tcp => {
                format!("{}:{RAW_PORT}", self.net.address(self.options.server))
            }
        }
    }

    /// The way of this world.
    pub(crate) fn way(&self) -> Way {
        self.options.way
    }

    /// The host of the servers.
    pub(crate) fn server_host(&self) -> &'static str {
        self.options.server
    }

    /// Where a client dials.
    pub(crate) fn target(&self) -> String {
        match self.options.way {
            Way::Direct => format!("{}:{SERVER_PORT}", self.net.address(self.options.server)),
            Way::Unix | Way::Tcp => self.mapping(),
        }
    }

    /// Where the server listens, on its host.
    pub(crate) fn served(&self) -> String {
        match self.options.way {
            Way::Unix | Way::Tcp if self.options.server == "db" => format!("127.0.0.1:{SERVER_PORT}"),
            Way::Direct | Way::Unix | Way::Tcp => {
                format!("{}:{SERVER_PORT}", self.net.address(self.options.server))
            }
        }
    }
}
