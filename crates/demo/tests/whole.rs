//! The demo as a user runs it: relay, agent, sidecar and service in one process, every row through them.

use hopline_demo::{DemoOptions, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_holds_through_a_real_path() {
    let mut out = Vec::new();
    let options = DemoOptions { json: true, ..DemoOptions::default() };
    let held = run(options, std::future::pending(), &mut out).await.unwrap();
    let table: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert!(held, "{table:#}");
    assert_eq!(table["rows"].as_array().unwrap().len(), 8);
}
