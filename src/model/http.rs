//! A file over http or https, continued where a part of it is already here.

use std::{
    fs::File,
    io::{Read, Write},
    path::Path,
    sync::{
        atomic::AtomicBool,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use sha2::{Digest, Sha256};
use ureq::tls::{RootCerts, TlsConfig};

use super::{
    error::PullError,
    progress::Progress,
    pull::{CHUNK_BYTES, check, hash_into, hex},
};

/// Longest wait for a connection, for headers, and for the next bytes.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);
const KEPT: &str = "; what was fetched is kept, and the next pull goes on from there";

/// What the server answered.
enum Answer {
    /// The bytes from where the part ends.
    Rest(ureq::Body, Option<u64>),
    /// The whole file, whatever was asked for.
    Whole(ureq::Body, Option<u64>),
    /// There is nothing after the part.
    Complete,
}

/// Fetches `url` into `part`, which may hold its beginning, and returns the SHA-256 of the whole.
pub fn fetch(url: &str, part: &Path, stop: &AtomicBool) -> Result<String, PullError> {
    let mut hash = Sha256::new();
    let mut have = if part.is_file() { hash_into(&mut hash, part, stop)? } else { 0 };
    let (body, rest) = match request(url, have)? {
        Answer::Complete => return Ok(hex(hash)),
        Answer::Rest(body, rest) => {
            if have > 0 {
                say!("going on after {have} bytes");
            }
            (body, rest)
        }
        Answer::Whole(body, whole) => {
            (have, hash) = (0, Sha256::new());
            (body, whole)
        }
    };
    let mut file = File::options()
        .create(true)
        .write(true)
        .truncate(have == 0)
        .append(have > 0)
        .open(part)
        .map_err(PullError::io(part))?;
    let end = rest.map(|rest| have + rest);
    let mut progress = Progress::start("downloading", end);
    for chunk in chunks(body) {
        check(stop)?;
        let Some(chunk) = chunk.map_err(|reason| failed(url, &reason, have))? else { continue };
        file.write_all(&chunk).map_err(PullError::io(part))?;
        hash.update(&chunk);
        have += chunk.len() as u64;
        progress.set(have);
    }
    match end {
        Some(end) if have < end => Err(failed(url, &format!("the connection ended after {have} of {end} bytes"), have)),
        _ => Ok(hex(hash)),
    }
}

/// The body in chunks, read by a thread of its own: a read that blocks must hide neither silence nor a wish to stop.
///
/// `None` says that nothing came for a moment. An item is an error after [`SILENCE_MAX`] of that.
fn chunks(body: ureq::Body) -> impl Iterator<Item = Result<Option<Vec<u8>>, String>> {
    let (sender, receiver) = mpsc::sync_channel(4);
    thread::spawn(move || {
        let mut reader = body.into_reader();
        loop {
            let mut chunk = vec![0; CHUNK_BYTES];
            let read = reader.read(&mut chunk).map(|count| {
                chunk.truncate(count);
                chunk
            });
            let last = !matches!(&read, Ok(chunk) if !chunk.is_empty());
            // The receiver is gone when the pull has ended; so does this.
            if sender.send(read).is_err() || last {
                return;
            }
        }
    });
    let mut heard = Instant::now();
    std::iter::from_fn(move || match receiver.recv_timeout(POLL) {
        Ok(Ok(chunk)) if chunk.is_empty() => None,
        Ok(Ok(chunk)) => {
            heard = Instant::now();
            Some(Ok(Some(chunk)))
        }
        Ok(Err(error)) => Some(Err(error.to_string())),
        Err(RecvTimeoutError::Timeout) if heard.elapsed() > SILENCE_MAX => {
            Some(Err(format!("nothing came for {} s", SILENCE_MAX.as_secs())))
        }
        Err(RecvTimeoutError::Timeout) => Some(Ok(None)),
        Err(RecvTimeoutError::Disconnected) => None,
    })
}

fn request(url: &str, have: u64) -> Result<Answer, PullError> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        // Of this machine: a company's mirror is signed by the company.
        .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
        .timeout_connect(Some(SILENCE_MAX))
        .timeout_recv_response(Some(SILENCE_MAX))
        .timeout_recv_body(None)
        .build()
        .into();
    let mut request = agent.get(url).header("accept-encoding", "identity");
    if have > 0 {
        request = request.header("range", format!("bytes={have}-"));
    }
    let response = request.call().map_err(|error| failed(url, &error.to_string(), have))?;
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let length = header("content-length").and_then(|text| text.parse().ok());
    let (status, range) = (response.status().as_u16(), header("content-range"));
    match (status, have) {
        (200, _) => Ok(Answer::Whole(response.into_body(), length)),
        (206, 1..) => match range.as_deref().and_then(first_of) {
            Some(first) if first == have => Ok(Answer::Rest(response.into_body(), length)),
            _ => Err(failed(url, "the server answered with other bytes than asked for", have)),
        },
        // Asked for what lies past the end: the part is the whole, or is none of this file; the hash tells.
        (416, 1..) => Ok(Answer::Complete),
        _ => Err(failed(url, &format!("the server answered {}", response.status()), have)),
    }
}

/// The first byte's place in `bytes 5-9/10`.
fn first_of(range: &str) -> Option<u64> {
    range.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

fn failed(url: &str, reason: &str, have: u64) -> PullError {
    PullError::Http { url: url.to_owned(), reason: reason.to_owned(), resume: if have > 0 { KEPT } else { "" } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_strictly() {
        assert_eq!(first_of("bytes 5-9/10"), Some(5));
        for wrong in ["bytes */10", "5-9/10", "bytes a-b/c", ""] {
            assert_eq!(first_of(wrong), None, "{wrong}");
        }
    }
}
