//! Tells the binary what it was built from: `THRONG_BUILD` is commit, target, profile and compiler.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // HEAD changes when another branch is checked out, its log with each commit.
    for name in ["HEAD", "logs/HEAD"] {
        let path = output("git", &["rev-parse", "--path-format=absolute", "--git-path", name]);
        // A file that is missing would have the crate built each time.
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    // Where the source is no checkout, no commit is known.
    let commit = output("git", &["rev-parse", "--short=12", "HEAD"]);
    let compiler = output(&variable("RUSTC"), &["--version"]);
    // Of "rustc 1.95.0 (59807616e 2026-04-14)" the version suffices.
    let compiler = compiler.map(|text| text.split(" (").next().unwrap_or_default().to_owned());
    let parts = [commit, Some(variable("TARGET")), Some(variable("PROFILE")), compiler];
    let build: Vec<String> = parts.into_iter().flatten().collect();
    println!("cargo:rustc-env=THRONG_BUILD={}", build.join(", "));
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// What a command prints, if it can be run and succeeds.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned()).filter(|text| !text.is_empty())
}
