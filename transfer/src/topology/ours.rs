//! Our own TOML, and JSON with the same fields; both out again without loss.

use serde::Deserialize;

use super::check::finish;
use super::error::TopologyError;
use super::format::line_of;
use super::types::{Source, Topology};

/// What `kvrail doctor --json` wraps a topology in; the rest of its report is not looked at.
#[derive(Deserialize)]
struct Report {
    topology: Topology,
}

pub(super) fn read_toml(text: &str) -> Result<Topology, TopologyError> {
    let topology: Topology = toml::from_str(text).map_err(|error| TopologyError::Syntax {
        format: Source::Toml,
        line: line_of(text.as_bytes(), error.span().map_or(0, |span| span.start)),
        says: error.message().trim().replace('\n', "; "),
    })?;
    finish(topology)
}

pub(super) fn read_json(text: &str) -> Result<Topology, TopologyError> {
    let bare = serde_json::from_str::<Topology>(text);
    let topology = bare.or_else(|bare| match serde_json::from_str::<Report>(text) {
        Ok(report) => Ok(report.topology),
        // Of the two errors, the one of the text's own shape helps.
        Err(of_report) => Err(if text.contains("\"topology\"") { of_report } else { bare }),
    });
    finish(topology.map_err(|error| {
        let says = error.to_string();
        // The line is said before it.
        let says = says.split(" at line ").next().unwrap_or_default().to_owned();
        TopologyError::Syntax { format: Source::Json, line: error.line(), says }
    })?)
}

impl Topology {
    /// As our TOML, which [`read`](super::read) turns into the same value again.
    ///
    /// # Errors
    /// If a number does not fit TOML; what a reader gave always does.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{fixtures, read};

    #[test]
    fn every_fixture_goes_out_and_comes_back_the_same() {
        for (name, topology) in fixtures::all() {
            let toml = topology.to_toml().unwrap();
            assert_eq!(read(toml.as_bytes()).unwrap(), topology, "{name}: {toml}");
            let json = serde_json::to_string(&topology).unwrap();
            assert_eq!(read(json.as_bytes()).unwrap(), topology, "{name}");
            let report = serde_json::json!({"version": "1", "findings": [], "topology": topology});
            assert_eq!(read(report.to_string().as_bytes()).unwrap(), topology, "{name}");
        }
    }

    #[track_caller]
    fn refused(text: &str, parts: &[&str]) {
        let error = read(text.as_bytes()).expect_err("wrong").to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "`{error}` lacks one of {parts:?}");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        refused("[[nic]]\nname = \"a\"\npci = \"nonsense\"", &["TOML, line 3", "0000:3b:00.0"]);
        refused("[[nic]]\nname = \"a\"\nspeed = 5", &["TOML, line 3", "speed"]);
        refused("[[nic]]\nname = \"a\"\nname = \"b\"", &["TOML, line 3"]);
        refused("[[gpu]]\nnuma = 0", &["TOML", "index"]);
        refused("[[gpu]]\nindex = 0\n[gpu.distances]\nmlx5_0 = \"near\"", &["line 4", "same-switch"]);
        refused("[[nic]]\nname = \"a\"\nports = [{ speed_bit_s = 0 }]", &["a.speed_bit_s", "bits a second"]);
        refused("[[node]]\nid = 0\ncpus = \"9-1\"", &["line 3", "0-47,96-143"]);
        refused("{\n\"nic\": [{\"name\": 5}]}", &["JSON", "line 2"]);
        refused("{\"topology\": {\"nic\": [{}]}}", &["JSON", "name"]);
        refused(&"{\"a\":".repeat(200_000), &["JSON, line 1", "unknown field"]);
        refused(&format!("{{\"topology\": {{}}, \"x\": {}", "[".repeat(200_000)), &["JSON"]);
        refused(&format!("a = {}", "[".repeat(200_000)), &["TOML"]);
    }
}
