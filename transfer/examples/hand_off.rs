//! A hand-off of KV blocks between two engines, as docs/transfer.md tells it. Both are in this process; two would do the same.
//!
//!     cargo run --release -p kvrail-transfer --example hand_off

use std::time::Duration;

use kvrail_transfer::{
    Access, ByteRange, Direction, Engine, EngineConfig, LeaseRequest, LeaseTicket, MemoryKind, Op, Strided,
    TransferRequest,
};

/// A pool: layers, blocks of each, bytes of a block.
const LAYERS: u64 = 32;
const BLOCKS: u64 = 64;
const BLOCK: u64 = 32 << 10;

/// Block `block` of every layer, as one descriptor.
fn column(block: u64) -> Strided {
    Strided { offset: block * BLOCK, len: BLOCK, stride: BLOCKS * BLOCK, count: LAYERS as u32 }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Decode owns memory and lends room for three blocks of a request.
    let decode = Engine::start(EngineConfig::default())?;
    let bytes = (LAYERS * BLOCKS * BLOCK) as usize;
    let pool = decode.allocate(bytes, MemoryKind::Shared)?;
    let room = [7, 9, 40];
    let ranges = room.iter().flat_map(|block| {
        (0..LAYERS).map(move |layer| ByteRange { offset: (layer * BLOCKS + block) * BLOCK, len: BLOCK })
    });
    let lease = decode.grant(LeaseRequest {
        region: &pool,
        ranges: ranges.collect(),
        access: Access::Write,
        ttl: Duration::from_secs(30),
    })?;
    // The ticket is the right to write there. It goes to prefill by whatever way the two talk.
    let ticket = lease.ticket().to_bytes();

    // Prefill connects, and pushes its blocks 0, 1 and 2 to where there is room.
    let prefill = Engine::start(EngineConfig::default())?;
    let peer = prefill.connect(decode.local_addr(), Some(decode.generation())).await?;
    let source = prefill.allocate(bytes, MemoryKind::Shared)?;
    source.write(0, &vec![1; bytes]);
    let ops = (0..).zip(room).map(|(from, to)| Op { local: column(from), remote: column(to) }).collect();
    let ticket = LeaseTicket::from_bytes(&ticket)?;
    let mut request = TransferRequest::new(&source, &ticket, Direction::Write, ops);
    request.notify = Some("request 17 is there".into());
    let report = prefill.submit(&peer, request)?.await;
    println!("{:?}: {} bytes in {:?}, {:?}", report.status, report.bytes, report.wire, report.bytes_by_rail);

    // Decode is told when all of it can be read.
    let told = decode.notifications().recv().await;
    let mut block = vec![0; BLOCK as usize];
    pool.read(40 * BLOCK, &mut block);
    println!("decode hears {:?}, and reads {:?}", std::str::from_utf8(&told.payload)?, &block[..4]);

    // The room is wanted back: from here on nothing lands there, whatever prefill does.
    println!("{:?}", lease.revoke().await);
    let late = TransferRequest::new(&source, &ticket, Direction::Write, vec![Op::contiguous(0, 7 * BLOCK, BLOCK)]);
    let report = prefill.submit(&peer, late)?.await;
    println!("{:?}", report.status.map_err(|error| error.to_string()));
    Ok(())
}
