//! Conversations to begin with: each kind of message and frame once, said right, so that a fuzzer begins inside.

use kvrail_transfer::testing::{Head, hello, message, stream_hello};

use crate::LENT;
use crate::script::step;

/// Seeds of each target: its name, and inputs.
#[must_use]
pub fn all() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    vec![("strangers", strangers()), ("session", session()), ("frames", frames()), ("answers", answers())]
}

fn commit() -> Vec<u8> {
    message(&[&[3][..], &[0; 8]].concat())
}

fn strangers() -> Vec<Vec<u8>> {
    let raw = |bytes: &[u8]| step(0, bytes);
    vec![
        raw(&hello((1, 1), 5)),
        raw(&[hello((1, 1), 5), commit()].concat()),
        raw(&hello((7, 9), 5)),
        raw(&stream_hello(1, [0; 16], 1)),
        raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        step(1, &[&[26][..], &[0; 32]].concat()),
        step(1, &hello((1, 1), 5)[8..]),
    ]
}

/// Each message of a session as its tag and as many zeros as it has bytes.
fn session() -> Vec<Vec<u8>> {
    let bodies: [(u8, usize); 17] = [
        (10, 8),
        (11, 6),
        (12, 6),
        (13, 2),
        (14, 12),
        (15, 9),
        (16, 0),
        (17, 2),
        (18, 2),
        (19, 48),
        (20, 16),
        (21, 25),
        (22, 20),
        (23, 8),
        (24, 16),
        (26, 32),
        (27, 8),
    ];
    let one = |(tag, zeros): (u8, usize)| step(2, &[&[tag][..], &vec![0; zeros]].concat());
    let mut seeds: Vec<Vec<u8>> = bodies.into_iter().map(one).collect();
    seeds.push(step(1, &[10, 0, 0, 0, 0, 0, 0, 0, 0]));
    // A notification of five bytes, twice, and good-bye.
    let notify = step(2, &[&[14][..], &[1, 0, 0, 0, 0, 0, 0, 0, 5, 0], b"hello"].concat());
    seeds.push([notify.clone(), notify, step(2, &[16])].concat());
    seeds
}

fn frames() -> Vec<Vec<u8>> {
    let t = [0; 3];
    let at = LENT.offset;
    let head = |kind, ranges: &[(u64, u32)]| Head::new(kind, 1, t, ranges).bytes;
    let mut seeds = vec![
        step(6, &head(1, &[(at, 512)])),
        step(6, &head(1, &[(at, 512), (at + 4096, 1024)])),
        step(6, &head(1, &[(at - 1, 512)])),
        step(6, &head(1, &[(u64::MAX, 512)])),
        step(3, &head(3, &[(at, 4096)])),
        step(6, &head(4, &[])),
        step(3, &head(5, &[])),
        step(2, &head(6, &[(1, 0)])),
        step(1, &head(7, &[])),
        step(2, &head(8, &[])),
        step(3, &head(9, &[])),
        [step(6, &head(1, &[(at, 64)])), step(3, &head(3, &[(at, 64)]))].concat(),
    ];
    let by_reference = [head(2, &[(at, 64)]), vec![0; 8]].concat();
    seeds.push(step(2, &by_reference));
    seeds
}

/// What a listener answers: an offer, a welcome, refusals.
fn answers() -> Vec<Vec<u8>> {
    // As an engine offers: version, generation, host, port, TCP, one stream; neither rails nor NICs.
    let offer = [&[2, 1, 0][..], &[3; 8], &[9; 16], &[0; 4], &[1, 0, 2, 1], &[0, 0, 0, 0]].concat();
    let welcome = [&[4][..], &[1; 8], &[2; 16], &[0, 0]].concat();
    let mut seeds: Vec<Vec<u8>> = (1..=8).map(|code| step(1, &[7, code, 1, 0, 1, 0])).collect();
    seeds.push(step(1, &offer));
    seeds.push([step(1, &offer), step(1, &welcome), step(1, &[9])].concat());
    seeds.push([step(1, &offer), step(1, &[&[5][..], &[1; 8]].concat())].concat());
    seeds.push([step(1, &offer), step(1, &[6])].concat());
    seeds
}
