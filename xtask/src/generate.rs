//! Code from .proto files, without protoc: protox compiles, tonic-prost-build writes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Where the .proto files begin, and the files below it.
const INCLUDE: &str = "crates/demo/proto";
const PROTOS: [&str; 1] = ["hopline/demo/v1/demo.proto"];
/// Where the results are checked in.
const OUT: &str = "crates/demo/src/proto";
const DESCRIPTORS: &str = "descriptors.bin";

/// Writes the generated files below `root`, or with `check` compares them with those on disk.
pub(crate) fn run(root: &Path, check: bool) -> anyhow::Result<()> {
    let out = root.join(OUT);
    let mut stale = Vec::new();
    for (name, fresh) in generated(root)? {
        let path = out.join(&name);
        if fs::read(&path).is_ok_and(|on_disk| on_disk == fresh) {
            continue;
        }
        if !check {
            fs::write(&path, fresh).with_context(|| format!("writing {}", path.display()))?;
        }
        stale.push(format!("{OUT}/{name}"));
    }
    if check && !stale.is_empty() {
        bail!("not what the .proto files give (run `cargo xtask generate`): {}", stale.join(", "));
    }
    Ok(())
}

/// The name and the content of each generated file.
fn generated(root: &Path) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut compiler = protox::Compiler::new([root.join(INCLUDE)])?;
    compiler.include_imports(true).include_source_info(true).open_files(PROTOS)?;
    let with_comments = compiler.file_descriptor_set();
    let descriptors = compiler.include_source_info(false).encode_file_descriptor_set();

    let scratch = tempfile::tempdir()?;
    tonic_prost_build::configure().bytes(".").out_dir(scratch.path()).compile_fds(with_comments)?;

    let mut files = vec![(DESCRIPTORS.to_owned(), descriptors)];
    for entry in fs::read_dir(scratch.path())? {
        let path: PathBuf = entry?.path();
        let name = path.file_name().context("a generated file has a name")?.to_string_lossy().into_owned();
        files.push((name, fs::read(&path)?));
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checked_in_code_is_what_the_proto_files_give() {
        run(&crate::root(), true).unwrap();
    }

    #[test]
    fn a_stale_file_fails_the_check_and_is_named() {
        let copy = tempfile::tempdir().unwrap();
        let proto = Path::new(INCLUDE).join(PROTOS[0]);
        fs::create_dir_all(copy.path().join(&proto).parent().unwrap()).unwrap();
        fs::create_dir_all(copy.path().join(OUT)).unwrap();
        fs::copy(crate::root().join(&proto), copy.path().join(&proto)).unwrap();
        run(copy.path(), false).unwrap();
        run(copy.path(), true).unwrap();

        let descriptors = copy.path().join(OUT).join(DESCRIPTORS);
        fs::write(&descriptors, b"older").unwrap();
        let error = run(copy.path(), true).unwrap_err().to_string();
        assert!(error.contains("crates/demo/src/proto/descriptors.bin"), "{error}");
        assert!(!error.contains("hopline.demo.v1.rs"), "{error}");
    }
}
