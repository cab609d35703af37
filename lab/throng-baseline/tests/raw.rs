//! The whole program without a server: the raw loop, its clients, and the report.

use std::process::Command;

#[test]
fn the_raw_loop_is_measured_and_reported() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let json = directory.path().join("results.json");
    let output = Command::new(env!("CARGO_BIN_EXE_throng-baseline"))
        .args(["--quick", "--raw-only", "--connections", "200", "--senders", "3"])
        .args(["--client-threads", "2", "--json"])
        .arg(&json)
        .args(["fanout", "burst", "connect", "responsiveness"])
        .output()
        .expect("the program runs");
    let text = std::fs::read_to_string(&json).unwrap_or_default();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let report: serde_json::Value = serde_json::from_str(&text).expect("a JSON report");
    let rows = report["rows"].as_array().expect("rows");
    for key in ["fanout_64_rate", "fanout_1024_cpu", "connect_rate", "health_kept_p50"] {
        let row = rows.iter().find(|row| row["key"] == key).expect(key);
        assert!(row["raw"]["median"].as_f64().is_some_and(|value| value > 0.0), "{row}");
        assert!(row["throng"].is_null(), "{row}");
    }
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("fan-out 64 B") && table.contains("On loopback"), "{table}");
}

#[test]
fn a_server_that_is_not_there_is_one_clear_sentence() {
    let output = Command::new(env!("CARGO_BIN_EXE_throng-baseline"))
        .args(["--quick", "--server", "/nonexistent/throng", "publish"])
        .output()
        .expect("the program runs");
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("there is no server at /nonexistent/throng"), "{error}");
}

#[test]
fn wrong_usage_has_its_own_exit_code() {
    let output = Command::new(env!("CARGO_BIN_EXE_throng-baseline"))
        .args(["--repeats", "0"])
        .output()
        .expect("the program runs");
    assert_eq!(output.status.code(), Some(64));
}
