//! What people see when a pool is up: who runs where, and what to try.

use std::{io::Write, net::SocketAddr, time::Duration};

use anyhow::{Context, bail};
use comfy_table::{Table, presets::NOTHING};
use kvrail_bench::client::Client;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::supervisor::Supervisor;

/// Longest wait for the gateway to know all nodes, once they are ready.
const KNOWN_MAX: Duration = Duration::from_secs(30);

/// Waits until the gateway is ready and knows all nodes; the name of the model that it serves. All of it comes from
/// `/status`, which needs no key where keys are configured.
///
/// # Errors
/// If that does not come true.
pub async fn when_serving(endpoint: SocketAddr, (prefill, decode): (usize, usize)) -> anyhow::Result<String> {
    let client = Client::new(&endpoint.to_string())?.with_silence_max(Duration::from_secs(5));
    let until = Instant::now() + KNOWN_MAX;
    loop {
        let last = match client.get("/status").await {
            Ok(status) => {
                let members = status["members"].as_array().cloned().unwrap_or_default();
                let count = |role: &str| members.iter().filter(|member| member["role"] == role).count();
                if count("prefill") >= prefill && count("decode") >= decode {
                    return status["model"].as_str().map(str::to_owned).context("the gateway did not name its model");
                }
                format!("it knows {} prefill and {} decode nodes", count("prefill"), count("decode"))
            }
            Err(error) => error.to_string(),
        };
        if Instant::now() > until {
            bail!("the gateway does not know {prefill} prefill and {decode} decode nodes after {KNOWN_MAX:?}: {last}");
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Name of the model that an endpoint serves.
///
/// # Errors
/// If it cannot be asked or serves none.
pub async fn model_name(client: &Client) -> anyhow::Result<String> {
    let models = client.get("/v1/models").await?;
    match models.pointer("/data/0/id").and_then(Value::as_str) {
        Some(name) => Ok(name.to_owned()),
        None => bail!("the endpoint serves no model"),
    }
}

/// Tells programs that the pool serves: one line of JSON on standard output.
///
/// # Errors
/// If the output is gone.
pub fn ready_line(endpoint: SocketAddr, model: &str) -> anyhow::Result<()> {
    let line = serde_json::json!({"ready": true, "role": "up", "http": endpoint, "model": model});
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}

/// Prints the table and the endpoint, for people.
///
/// # Errors
/// If the output is gone.
pub fn table(pool: &Supervisor, endpoint: SocketAddr, name: &str) -> anyhow::Result<()> {
    let mut out = std::io::stderr().lock();
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["process", "pid", "address", "status at", "log"]);
    for member in pool.members() {
        let address = |which: fn(&crate::ready::Ready) -> Option<SocketAddr>| {
            member.ready.as_ref().and_then(which).map(|address| address.to_string()).unwrap_or_default()
        };
        table.add_row([
            member.spec.name.clone(),
            member.pid().map(|pid| pid.to_string()).unwrap_or_default(),
            address(|ready| ready.http.or(ready.grpc)),
            address(|ready| ready.admin.or(ready.http)),
            format!("{}.log", member.spec.name),
        ]);
    }
    writeln!(out, "\n{table}\n")?;
    writeln!(out, "logs      {}", pool.logs().dir().display())?;
    writeln!(out, "model     {name}")?;
    writeln!(out, "endpoint  http://{endpoint}/v1")?;
    out.flush()?;
    Ok(())
}

/// Prints commands to try, and how it ends: for people, where it does not end by itself.
///
/// # Errors
/// If the output is gone.
pub fn what_to_try(endpoint: SocketAddr, name: &str) -> anyhow::Result<()> {
    let mut out = std::io::stderr().lock();
    let body = serde_json::json!({"model": name, "messages": [{"role": "user", "content": "Hello!"}], "stream": true});
    writeln!(
        out,
        "try       curl -N http://{endpoint}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"
    )?;
    writeln!(out, "or        kvrail chat --url http://{endpoint}")?;
    writeln!(out, "\nCtrl-C ends everything")?;
    out.flush()?;
    Ok(())
}
