//! Programs that we did not write, as clients of the example.
//!
//! A program that is not installed is left out, with a note.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use throng_tls::{Alert, End, StreamEnd};

use crate::serve_tls::{Served, acceptor, serve};

/// Version, option and name of each suite, as openssl calls them.
const SUITES: [[&str; 3]; 6] = [
    ["-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256"],
    ["-tls1_3", "-ciphersuites", "TLS_AES_256_GCM_SHA384"],
    ["-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"],
    ["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"],
    ["-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384"],
    ["-tls1_2", "-cipher", "ECDHE-ECDSA-CHACHA20-POLY1305"],
];

fn is_installed(program: &str) -> bool {
    let is_there = Command::new(program).arg("version").stdin(Stdio::null()).output().is_ok();
    if !is_there {
        eprintln!("{program} is not installed: this test is left out");
    }
    is_there
}

/// Makes a certificate for `localhost`, valid for two days. Returns the files of it and its key.
fn certificate(name: &str) -> (PathBuf, PathBuf) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (certificate, key) =
        (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key.pem")));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-keyout".as_ref(), key.as_os_str(), "-out".as_ref(), certificate.as_os_str()])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    (certificate, key)
}

/// Serves one connection.
fn start((certificate, key): &(PathBuf, PathBuf)) -> (SocketAddr, JoinHandle<Served>) {
    let acceptor = acceptor(certificate.to_str().unwrap(), key.to_str().unwrap()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        serve(&acceptor, socket).unwrap()
    });
    (address, server)
}

/// Types `lines` into `openssl s_client`; each has to come back, but for commands. Returns what the
/// client wrote.
fn type_into_openssl(address: SocketAddr, options: &[&str], lines: &[&str]) -> String {
    let mut client = Command::new("openssl")
        .args(["s_client", "-connect", &address.to_string(), "-servername", "localhost"])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = client.stdin.take().unwrap();
    let mut stdout = BufReader::new(client.stdout.take().unwrap());
    let mut stderr = BufReader::new(client.stderr.take().unwrap());
    let mut seen = String::new();
    for line in lines {
        // At once: the client looks for commands at the beginning of what it reads.
        if stdin.write_all(format!("{line}\n").as_bytes()).is_err() {
            stderr.read_to_string(&mut seen).unwrap();
            panic!("the client ended before '{line}' could be typed: {seen}");
        }
        // A command is not sent. What is typed before it has been carried out would be lost.
        match *line {
            "k" | "K" => wait_for(&mut stderr, "KEYUPDATE", &mut seen),
            "Q" | "R" => {}
            line => wait_for(&mut stdout, line, &mut seen),
        }
    }
    stdout.read_to_string(&mut seen).unwrap();
    client.wait().unwrap();
    seen
}

/// Reads until this line has come; adds all lines to `seen`.
fn wait_for(output: &mut impl BufRead, line: &str, seen: &mut String) {
    let mut came = String::new();
    while came.trim_end() != line {
        came.clear();
        let count = output.read_line(&mut came).unwrap();
        assert_ne!(count, 0, "the client ended before '{line}' came: {seen}");
        seen.push_str(&came);
    }
}

#[test]
fn openssl_talks_and_updates_keys() {
    if !is_installed("openssl") {
        return;
    }
    let files = certificate("openssl");
    for [version, option, suite] in SUITES {
        let is_tls13 = version == "-tls1_3";
        let (address, server) = start(&files);
        let ca = files.0.to_str().unwrap();
        let options = [version, option, suite, "-CAfile", ca, "-verify_return_error"];
        let lines: &[&str] = if is_tls13 {
            &["first", "k", "second", "K", "third", "K", "fourth", "k", "fifth", "Q"]
        } else {
            &["first", "second", "Q"]
        };
        let seen = type_into_openssl(address, &options, lines);
        assert!(seen.contains(&format!("Cipher is {suite}")), "{seen}");
        let served = server.join().unwrap();
        let content_bytes = lines.iter().filter(|line| line.len() > 1).map(|line| line.len() + 1);
        let expected = Served {
            content_bytes: content_bytes.sum(),
            key_updates: if is_tls13 { 2 } else { 0 },
            end: Some(End::Closed),
            stream_end: StreamEnd::Clean,
        };
        assert_eq!(served, expected, "{suite}");
    }
}

#[test]
fn openssl_may_not_renegotiate() {
    if !is_installed("openssl") {
        return;
    }
    let (address, server) = start(&certificate("renegotiation"));
    type_into_openssl(address, &["-tls1_2"], &["first", "R"]);
    let served = server.join().unwrap();
    assert_eq!(served.end, Some(End::Failed(Alert::NoRenegotiation)));
    assert_eq!(served.stream_end, StreamEnd::Truncated);
}

/// Sends 300 KB and reads it back; says goodbye if told so.
const PYTHON: &str = r#"
import socket, ssl, sys
PIECE = 40_000
port, ca, version, goodbye = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)
context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
plain = socket.create_connection(("127.0.0.1", int(port)))
client = context.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)
sent = bytes(range(256)) * 1200
got = b""
# By pieces: two threads must not use one connection of OpenSSL at the same time.
for start in range(0, len(sent), PIECE):
    client.sendall(sent[start:start + PIECE])
    while len(got) < min(start + PIECE, len(sent)):
        part = client.recv(65536)
        assert part, "the server closed early"
        got += part
assert got == sent
assert client.version() == version.replace("_", ".")
if goodbye == "yes":
    # Waits for the server's close_notify.
    client.unwrap()
else:
    # The method of the client itself would drop its keys.
    socket.socket.shutdown(client, socket.SHUT_WR)
    assert client.recv(1) == b""
"#;

#[test]
fn python_talks_and_its_goodbye_is_heard() {
    if !(is_installed("openssl") && is_installed("python3")) {
        return;
    }
    let files = certificate("python");
    for version in ["TLSv1_2", "TLSv1_3"] {
        for (goodbye, end, stream_end) in
            [("yes", Some(End::Closed), StreamEnd::Clean), ("no", None, StreamEnd::Truncated)]
        {
            let (address, server) = start(&files);
            let done = Command::new("python3")
                .args(["-c", PYTHON, &address.port().to_string()])
                .args([files.0.to_str().unwrap(), version, goodbye])
                .output()
                .unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            let served = server.join().unwrap();
            let expected = Served { content_bytes: 256 * 1200, key_updates: 0, end, stream_end };
            assert_eq!(served, expected, "{version}, goodbye: {goodbye}");
        }
    }
}
