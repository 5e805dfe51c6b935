//! What the command line takes, for people and for shells: written from its parser, so that it cannot be out of date.
//! The page of limits is written with it.
//!
//! The keys of the config files come from `docs/config.md`, which the tests of the config crate hold to the code.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use clap::{Arg, Command, CommandFactory as _};
use clap_complete::Shell;

#[path = "../../crates/cli/src/args.rs"]
mod args;

const PAGE: &str = "docs/reference.md";
const MAN: &str = "deploy/man";
const COMPLETIONS: &str = "deploy/completions";

/// Writes the files below `root`, or with `check` compares them with those on disk.
///
/// # Errors
///
/// When a file cannot be read or written, and with `check` when one differs.
pub(crate) fn run(root: &Path, check: bool) -> anyhow::Result<()> {
    let mut stale = Vec::new();
    for (name, fresh) in files(root)? {
        let path = root.join(&name);
        if fs::read(&path).is_ok_and(|on_disk| on_disk == fresh) {
            continue;
        }
        if !check {
            let folder = path.parent().context("every file has a folder")?;
            fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
            fs::write(&path, fresh).with_context(|| path.display().to_string())?;
        }
        stale.push(name);
    }
    if check && !stale.is_empty() {
        bail!("not what the code says (run `cargo xtask reference`): {}", stale.join(", "));
    }
    Ok(())
}

/// Name and content of each file.
fn files(root: &Path) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut command = args::Args::command();
    // Gives each command its whole name, and the arguments that it inherits.
    command.build();
    let config = root.join("docs/config.md");
    let config = fs::read_to_string(&config).with_context(|| config.display().to_string())?;
    let mut files = vec![
        (PAGE.to_owned(), page(&command, &config).into_bytes()),
        ("docs/limits.md".to_owned(), crate::limits::page().into_bytes()),
    ];
    let shells = [(Shell::Bash, "hopline.bash"), (Shell::Zsh, "_hopline"), (Shell::Fish, "hopline.fish")];
    for (shell, name) in shells {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut args::Args::command(), "hopline", &mut script);
        files.push((format!("{COMPLETIONS}/{name}"), script));
    }
    men(&command, &mut files)?;
    Ok(files)
}

/// A man page for the program, and one for each command.
fn men(command: &Command, files: &mut Vec<(String, Vec<u8>)>) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    // The parser takes only names that live as long as the process; there is one for each command.
    let name: &'static str = name.leak();
    let page = clap_mangen::Man::new(command.clone().name(name));
    let mut text = Vec::new();
    page.render(&mut text)?;
    files.push((format!("{MAN}/{name}.1"), text));
    for sub in shown(command) {
        men(sub, files)?;
    }
    Ok(())
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

fn page(command: &Command, config: &str) -> String {
    let mut page = "# Reference\n\nEvery command with its flags, and every key of the config files. Written by `cargo xtask reference` from the\n\
        parser and from [config](config.md); man pages and completions for shells are in [deploy/](../deploy), and\n\
        `hopline completions SHELL` prints the latter.\n\n## Commands\n"
        .to_owned();
    for sub in shown(command) {
        describe(sub, &mut page);
    }
    page += "\n## Keys\n\nWhat each may hold, with an example: [config](config.md).\n";
    keys(config, &mut page);
    page
}

/// A command, or the commands below it.
fn describe(command: &Command, page: &mut String) {
    let below: Vec<_> = shown(command).collect();
    for sub in &below {
        describe(sub, page);
    }
    if !below.is_empty() {
        return;
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    // Writing to a string can't fail.
    let _ = write!(page, "\n### {name}\n\n");
    if let Some(about) = command.get_about() {
        let _ = write!(page, "{about}\n\n");
    }
    let _ = write!(page, "```text\n{usage}\n```\n\n| argument | default | what it says |\n|---|---|---|\n");
    for argument in command.get_arguments().filter(|argument| argument.get_id() != "help") {
        let (default, help) = default_of(argument);
        let _ = writeln!(page, "| `{}` | {default} | {} |", spelled(argument), help.replace('|', "\\|"));
    }
}

/// `-c, --config <FILE>`.
fn spelled(argument: &Arg) -> String {
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let flags: Vec<_> = short.into_iter().chain(long).collect();
    let names = argument.get_value_names().unwrap_or_default();
    let value = names.iter().map(|name| format!("<{name}>")).collect::<Vec<_>>().join(" ");
    let value = if argument.get_action().takes_values() { value } else { String::new() };
    let text = [flags.join(", "), value].join(" ");
    text.trim().replace('|', "\\|")
}

/// The default, from the parser or from the end of the help, and the help without it.
fn default_of(argument: &Arg) -> (String, String) {
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    if let Some((help, default)) = help.split_once(" [default: ") {
        return (default.trim_end_matches(']').to_owned(), help.to_owned());
    }
    let values: Vec<_> =
        argument.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    let default = if !argument.get_action().takes_values() {
        "off".to_owned()
    } else if values.is_empty() {
        let needed = argument.is_required_set();
        if needed { "must be given" } else { "none" }.to_owned()
    } else {
        values.join(", ")
    };
    (default, help)
}

/// The tables of keys, each under its heading, with key, default and meaning.
fn keys(config: &str, page: &mut String) {
    let mut heading = "";
    let mut last = "";
    for line in config.lines() {
        if line.starts_with("##") {
            heading = line.trim_start_matches(['#', ' ']);
        }
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let &[_, key, default, _, example, says, _] = cells.as_slice() else { continue };
        if key == "key" || key.starts_with('-') || example.is_empty() {
            continue;
        }
        if heading != last {
            let _ = write!(page, "\n### {heading}\n\n| key | default | what it says |\n|---|---|---|\n");
            last = heading;
        }
        let default = if default.is_empty() { "none" } else { default };
        let _ = writeln!(page, "| {key} | {default} | {says} |");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_what_the_parser_says() {
        run(&crate::root(), true).unwrap();
    }

    #[test]
    fn every_command_and_every_key_is_there() {
        let files = files(&crate::root()).unwrap();
        let text = |name: &str| {
            let (_, text) = files.iter().find(|(file, _)| file == name).unwrap();
            String::from_utf8(text.clone()).unwrap()
        };
        let page = text(PAGE);
        for part in [
            "### hopline token create",
            "`--drain <DURATION>`",
            "`-c, --config <FILE>`",
            "| `open_timeout` |",
            "### log",
        ] {
            assert!(page.contains(part), "{part} is not in {PAGE}");
        }
        assert_eq!(
            page.matches("\n| `").count(),
            page.lines().filter(|line| line.starts_with("| `")).count()
        );
        for (name, part) in
            [("hopline.1", "machine"), ("hopline-token-create.1", "publish"), ("hopline-status.1", "watch")]
        {
            assert!(text(&format!("{MAN}/{name}")).contains(part), "{part} is not in {name}");
        }
        for name in ["hopline.bash", "_hopline", "hopline.fish"] {
            assert!(text(&format!("{COMPLETIONS}/{name}")).contains("watch"), "{name}");
        }
    }
}
