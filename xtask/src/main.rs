//! Chores that need more than the two commands of the README: `cargo xtask --help` lists them.

mod demo_breaks;
mod docs;
mod generate;
mod lab;
mod limits;
mod modules;
mod mutants;
mod page;
mod promises;
mod reference;
mod wire;

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Chores of the Hopline workspace")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Writes the code that is generated from .proto files; it is checked in.
    Generate {
        /// Writes nothing; fails when the files differ from what would be generated.
        #[arg(long)]
        check: bool,
    },
    /// Breaks one thing per row of `hopline demo` and checks that this row alone turns red.
    DemoBreaks {
        /// The binary to run; without it `hopline` is built and run by cargo.
        #[arg(long)]
        bin: Option<PathBuf>,
        /// Only these rows; all when none is named.
        rows: Vec<String>,
    },
    /// Attacks a status address, and measures what that takes from the path of the process.
    Attacked {
        /// Rounds, each quiet and then attacked.
        #[arg(long, default_value_t = 10)]
        rounds: u64,
    },
    /// Lists links of the pages that lead nowhere, and tests, lab scenarios and rows of the demo that docs/failures.md,
    /// docs/promises.md and mutants/ name in vain.
    Docs,
    /// Measures the promises on hosts of network namespaces; needs root. `cargo xtask lab --help` says more.
    #[command(disable_help_flag = true)]
    Lab {
        /// For the lab.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Prints which modules at the top of a crate import which; fails where they import each other in a circle.
    Modules {
        /// Folders below `crates/`.
        #[arg(default_value = "edge")]
        crates: Vec<String>,
    },
    /// Applies each patch of `mutants/` to a copy of the work tree, and runs the tests that must notice.
    Mutants {
        /// Lists the patches and who notices them, and runs nothing.
        #[arg(long)]
        list: bool,
        /// Only those whose names begin so.
        names: Vec<String>,
    },
    /// Shows the status page in Chromium before real processes, checks it, and writes docs/screenshots.
    Page {
        /// The binary to show; without it `hopline` is built.
        #[arg(long)]
        bin: Option<PathBuf>,
        /// Where the screenshots go.
        #[arg(long, default_value = "docs/screenshots")]
        out: PathBuf,
    },
    /// Writes docs/reference.md, man pages and completions from the parser of the command line, and docs/limits.md from the
    /// limits of the crates.
    Reference {
        /// Writes nothing; fails when the files differ from what would be written.
        #[arg(long)]
        check: bool,
    },
    /// Sends calls of a million distinct paths through one mapping, and fails when `/metrics` has another series or a
    /// process has grown.
    Series {
        /// How many paths.
        #[arg(long, default_value_t = 1_000_000)]
        paths: u64,
    },
    /// Lets each thing that may block do so, with traffic beside it, and compares that with the same traffic alone; the one
    /// of the name server needs root.
    Soak {
        /// Rounds of each, quiet and then beside what blocks.
        #[arg(long, default_value_t = 5)]
        rounds: u64,
        /// Those whose names begin so: logs, a_silent, a_lock, slow; all if it is not given.
        #[arg(default_value = "")]
        only: String,
    },
    /// Lists requirements of WIRE.md that no test cites.
    Wire,
    /// Runs random histories of chains of links, in release mode.
    Sim {
        /// How many; 1,000, or 1 where a seed is named.
        #[arg(long)]
        seeds: Option<u64>,
        /// The first seed, 0 if none is named. A history that breaks a promise prints its own.
        #[arg(long)]
        seed: Option<u64>,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().chore {
        Chore::Generate { check } => generate::run(&root(), check),
        Chore::DemoBreaks { bin, rows } => demo_breaks::run(&root(), bin, &rows),
        Chore::Docs => docs::run(&root()),
        Chore::Lab { arguments } => lab::run(&root(), &arguments),
        Chore::Modules { crates } => modules::run(&root(), &crates),
        Chore::Mutants { list, names } => mutants::run(&root(), &names, list),
        Chore::Page { bin, out } => page::run(&root(), bin, &out),
        Chore::Reference { check } => reference::run(&root(), check),
        Chore::Attacked { rounds } => test_at_size(&root(), &["attacked::"], "HOPLINE_ATTACK_ROUNDS", rounds),
        Chore::Series { paths } => test_at_size(&root(), &["series::"], "HOPLINE_SERIES_PATHS", paths),
        Chore::Soak { rounds, only } => {
            // One after the other: they measure.
            let words = ["--ignored", "--test-threads", "1", &format!("soak::soak_{only}")];
            test_at_size(&root(), &words, "HOPLINE_SOAK_ROUNDS", rounds)
        }
        Chore::Wire => wire::run(&root()),
        Chore::Sim { seeds, seed } => {
            let seeds = seeds.unwrap_or(if seed.is_some() { 1 } else { 1_000 });
            wire::sim(&root(), seeds, seed.unwrap_or(0))
        }
    }
}

/// A test that `cargo test` runs small, at another size.
fn test_at_size(root: &Path, test: &[&str], variable: &str, size: u64) -> anyhow::Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(["test", "--release", "--package", "hopline-cli", "--test", "e2e", "--", "--nocapture"])
        .args(test)
        .env(variable, size.to_string())
        .current_dir(root)
        .status()?;
    anyhow::ensure!(status.success(), "{} did not hold at this size", test.join(" "));
    Ok(())
}

/// The workspace's folder.
fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}
