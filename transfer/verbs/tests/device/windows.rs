//! Memory windows of type 2: the finest fence, where a device has it.

use kvrail_verbs::{Access, Data, MemoryWindow, Opcode, Operation, Remote, Status, WindowKind};

use crate::Outcome;
use crate::bench::{Bench, End, Memory, pattern};

/// A window at the second end, or why there is none.
fn window(end: &End) -> Result<MemoryWindow, String> {
    let can = end.context.attributes().expect("device");
    if !can.windows_2a && !can.windows_2b {
        return Err(format!("{} has no windows of type 2", end.context.name()));
    }
    end.domain.window(WindowKind::Two).map_err(|e| format!("{e}: {:?}", e.errno()))
}

/// Binds it to 4,096 bytes from 4,096 on, for writing.
fn bind(end: &End, window: &MemoryWindow, memory: &Memory) -> u32 {
    let rkey = window.next_rkey();
    let bind = Operation::Bind {
        window,
        region: &memory.region,
        address: memory.address() + 4096,
        bytes: 4096,
        access: Access::REMOTE_WRITE,
        rkey,
    };
    end.post(90, bind, Data::NONE);
    let done = end.completion();
    assert_eq!((done.id(), done.status(), done.opcode()), (90, Status::Success, Some(Opcode::Bind)));
    assert_eq!(window.rkey(), rkey);
    rkey
}

/// How a write of 16 bytes through a key ends.
fn write(a: &End, source: &Memory, address: u64, rkey: u32) -> Status {
    a.post(1, Operation::Write(Remote { address, rkey }), Data::Segments(&[source.segment(0, 16)]));
    a.completion().status()
}

pub fn bound_range(bench: &Bench) -> Outcome {
    let mut is_loose = None;
    for case in ["inside", "outside", "beyond", "read", "void"] {
        let [a, b] = bench.pair();
        let window = window(&b)?;
        let (source, target) = (a.memory(4096, 1), b.memory(3 * 4096, 2));
        let rkey = bind(&b, &window, &target);
        let inside = target.address() + 4096;
        assert_eq!(write(&a, &source, inside, rkey), Status::Success);
        assert_eq!(target.bytes()[4096..4112], source.bytes()[..16]);
        match case {
            "inside" => assert_eq!(write(&a, &source, inside + 4080, rkey), Status::Success),
            "outside" => {
                // The rxe of Linux 6.12 looks up the window and then checks the range of its region.
                if write(&a, &source, inside + 4081, rkey) != Status::RemoteAccess {
                    is_loose = Some(format!("{}: a window opens its whole region, all else holds", b.context.name()));
                }
            }
            "beyond" => assert_eq!(write(&a, &source, inside + 8192 - 15, rkey), Status::RemoteAccess),
            "read" => {
                let from = Operation::Read(Remote { address: inside, rkey });
                a.post(1, from, Data::Segments(&[source.segment(0, 16)]));
                assert_eq!(a.completion().status(), Status::RemoteAccess);
            }
            _ => {
                b.post(91, Operation::Invalidate(rkey), Data::NONE);
                let done = b.completion();
                assert_eq!((done.status(), done.opcode()), (Status::Success, Some(Opcode::Invalidate)));
                assert_eq!(write(&a, &source, inside + 16, rkey), Status::RemoteAccess);
                assert!(target.bytes()[4112..] == pattern(2, 3 * 4096)[4112..], "something landed by a void key");
            }
        }
        drop(window);
    }
    is_loose.map_or(Ok(()), Err)
}

pub fn destroyed(bench: &Bench) -> Outcome {
    let [a, b] = bench.pair();
    let window = window(&b)?;
    let (source, target) = (a.memory(4096, 1), b.memory(3 * 4096, 2));
    let rkey = bind(&b, &window, &target);
    let before = b.context.undestroyed();
    drop(window);
    assert_eq!(b.context.undestroyed(), before);
    assert_eq!(write(&a, &source, target.address() + 4096, rkey), Status::RemoteAccess);
    assert!(target.bytes() == pattern(2, 3 * 4096), "something landed by a void key");
    Ok(())
}

pub fn region_in_use(bench: &Bench) -> Outcome {
    let [_a, b] = bench.pair();
    let window = window(&b)?;
    let target = b.memory(3 * 4096, 2);
    bind(&b, &window, &target);
    let region = target.region.clone();
    let (_, error) = region.deregister().expect_err("two handles");
    assert_eq!(error.errno(), Some(libc::EBUSY));
    drop(window);
    Ok(())
}
