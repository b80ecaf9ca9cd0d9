//! The scheduler's rules, and properties over random loads.

use super::*;

const LIMITS: Limits = Limits { block_tokens: 16, batch_max: 8, prefill_tokens_max: 64, step_target: None };

fn tokens(plan: &[Work]) -> Vec<(u64, u32)> {
    plan.iter().map(|w| (w.ticket.0, w.tokens)).collect()
}

#[test]
fn the_queue_keeps_the_order_of_arrival_whoever_returns() {
    let mut scheduler = Scheduler::new(LIMITS);
    for ticket in [3, 4, 5] {
        scheduler.enqueue(Ticket(ticket));
    }
    scheduler.dequeue(Ticket(3));
    assert_eq!(scheduler.head(), Some(Ticket(4)));
    scheduler.enqueue(Ticket(3));
    assert_eq!(scheduler.head(), Some(Ticket(3)), "preempted, back at its place");
    assert_eq!(scheduler.queued(), 3);
}

#[test]
fn decode_goes_first_and_prompts_get_aligned_chunks_of_what_is_left() {
    let mut scheduler = Scheduler::new(LIMITS);
    scheduler.run(Ticket(1), 100, 1, true);
    scheduler.run(Ticket(2), 0, 1000, true);
    scheduler.run(Ticket(3), 7, 1, true);
    scheduler.run(Ticket(4), 32, 5, true);
    assert_eq!(tokens(&scheduler.plan()), [(1, 1), (3, 1), (2, 64)], "64 rows at most, and all went to the oldest");
    scheduler.run(Ticket(2), 992, 8, true);
    assert_eq!(tokens(&scheduler.plan()), [(1, 1), (3, 1), (2, 8), (4, 5)], "the last chunk of a prompt may be short");
}

#[test]
fn every_chunk_but_the_last_ends_on_a_block() {
    let limits = Limits { prefill_tokens_max: 50, ..LIMITS };
    let mut scheduler = Scheduler::new(limits);
    let (mut position, total) = (16, 16 + 333);
    let mut chunks = 0;
    while position < total {
        scheduler.run(Ticket(1), position, total - position, true);
        let plan = scheduler.plan();
        assert_eq!(plan.len(), 1, "work left is work done");
        position += plan[0].tokens;
        chunks += 1;
        assert!(position % 16 == 0 || position == total);
        assert!(plan[0].tokens <= 50);
    }
    assert_eq!(chunks, 7);
}

#[test]
fn the_step_target_bounds_the_batch_but_starves_nobody() {
    let limits = Limits { step_target: Some(Duration::from_millis(20)), batch_max: 64, ..LIMITS };
    let mut scheduler = Scheduler::new(limits);
    for i in 0..200u32 {
        let rows = 1 + i % 32;
        scheduler.observe(rows, Duration::from_millis(10) + Duration::from_millis(2) * rows);
    }
    for ticket in 0..10 {
        scheduler.run(Ticket(ticket), 50, 1, true);
    }
    scheduler.run(Ticket(99), 0, 100, true);
    let plan = scheduler.plan();
    let decoding: Vec<_> = plan.iter().filter(|w| w.tokens == 1).map(|w| w.ticket.0).collect();
    assert_eq!(decoding, [0, 1, 2, 3, 4], "five rows fit into 20 ms, the oldest get them");
    assert_eq!(plan.last(), Some(&Work { ticket: Ticket(99), tokens: 16 }), "a prompt gets a block all the same");
}

#[test]
fn preemption_hits_the_youngest_and_never_an_older_one() {
    let mut scheduler = Scheduler::new(LIMITS);
    for ticket in [2, 5, 9] {
        scheduler.run(Ticket(ticket), 10, 1, true);
    }
    assert_eq!(scheduler.younger_than(Ticket(5)), Some(Ticket(9)));
    scheduler.run(Ticket(9), 10, 1, false);
    assert_eq!(scheduler.younger_than(Ticket(5)), None, "who has been hit once is not hit again");
    assert_eq!(scheduler.younger_than(Ticket(2)), Some(Ticket(5)));
    scheduler.pause(Ticket(9));
    assert!(scheduler.plan().iter().all(|w| w.ticket != Ticket(9)));
}
