use super::super::read;
use super::*;

/// A journal of two clients, written as they would write it, and what is wrong with it.
fn violations(journal: &str) -> Vec<Violation> {
    let entries = journal.lines().map(|line| read(line).expect("a line"));
    let entries: Vec<_> = entries.collect();
    let found = Claims::of(&entries).violations(true);
    found.into_iter().map(|(_, violation)| violation).collect()
}

fn line(at: u64, claim: u64, what: What) -> String {
    let client = u32::try_from(claim).expect("a small number");
    Entry {
        at,
        client,
        claim,
        what,
    }
    .line()
}

fn ask(at: u64, claim: u64, shared: bool) -> String {
    let locks = vec!["x".to_owned()];
    line(at, claim, What::Ask { locks, shared })
}

fn held(at: u64, claim: u64, fence: u64, until: u64) -> String {
    line(at, claim, What::Held { fence, until })
}

fn release(at: u64, claim: u64) -> String {
    line(at, claim, What::Release)
}

fn write(at: u64, claim: u64, fence: u64, read: u64, was: Option<u64>) -> String {
    let lock = "x".to_owned();
    let what = What::Write {
        lock,
        fence,
        read,
        was,
        arrived: None,
    };
    line(at, claim, what)
}

/// A write that was delayed until now.
fn late(at: u64, claim: u64, fence: u64, read: u64, was: Option<u64>) -> String {
    let (lock, arrived) = ("x".to_owned(), Some(at));
    let what = What::Write {
        lock,
        fence,
        read,
        was,
        arrived,
    };
    line(at, claim, what)
}

#[test]
fn holders_that_follow_each_other_are_accepted() {
    let good = [
        ask(0, 1, false),
        held(5, 1, 10, 100),
        line(50, 1, What::Valid { until: 150 }),
        write(60, 1, 10, 0, Some(0)),
        line(
            61,
            1,
            What::Again {
                fence: 10,
                asked: 60,
            },
        ),
        line(62, 1, What::Leave { asked: 61 }),
        release(70, 1),
        ask(1, 2, false),
        held(71, 2, 11, 170),
        write(72, 2, 11, 1, Some(1)),
        write(200, 2, 9, 2, None),
        ask(100, 3, true),
        held(170, 3, 0, 300),
        ask(100, 4, true),
        held(171, 4, 0, 300),
    ];
    assert_eq!(violations(&good.concat()), []);
}

#[test]
fn a_second_holder_before_the_end_of_the_first_is_found() {
    let overlap = |second: String, third: &str| {
        let journal = [ask(0, 1, false), held(5, 1, 10, 100), second].concat() + third;
        violations(&journal)
    };
    let exclusive = ask(1, 2, false) + &held(99, 2, 11, 200);
    let expected = [Violation::Overlap("x".into(), 1, 2)];
    assert_eq!(overlap(exclusive.clone(), ""), expected);
    let shared = ask(1, 2, true) + &held(99, 2, 0, 200);
    assert_eq!(overlap(shared, ""), expected);
    // An extension counts, and so does a look after the second one has gone.
    let later = ask(1, 2, false) + &held(101, 2, 11, 200);
    let extended = line(90, 1, What::Valid { until: 150 });
    assert_eq!(overlap(later.clone(), &extended), expected);
    let gone = release(110, 2) + &line(120, 1, What::Valid { until: 150 });
    let falsely = [Violation::FalselyHeld("x".into(), 1, 2)];
    assert_eq!(overlap(later, &gone), falsely);
    // Who has begun to release claims nothing.
    assert_eq!(overlap(exclusive, &release(98, 1)), []);
}

#[test]
fn fences_must_grow_and_be_unique() {
    let two = |first: u64, second: u64| {
        let first = [ask(0, 1, false), held(5, 1, first, 9), release(8, 1)];
        let second = [ask(10, 2, false), held(15, 2, second, 90)];
        violations(&(first.concat() + &second.concat()))
    };
    assert_eq!(two(10, 11), []);
    assert_eq!(two(10, 10), [Violation::Doubled("x".into(), 10)]);
    assert_eq!(two(11, 10), [Violation::Disordered("x".into(), 11, 10)]);
    let journal = [
        ask(0, 1, false),
        held(5, 1, 10, 90),
        line(
            8,
            1,
            What::Again {
                fence: 11,
                asked: 7,
            },
        ),
    ];
    let changed = [Violation::Changed("x".into(), 10, 11)];
    assert_eq!(violations(&journal.concat()), changed);
}

#[test]
fn a_re_entry_on_a_server_keeps_the_fence_and_counts() {
    let found = |fences: [u64; 4], holds: [u64; 3], removed: u64| {
        let what = What::Reentered {
            fences,
            holds,
            removed,
        };
        let journal = [ask(0, 1, false), held(5, 1, 10, 90), line(8, 1, what)].concat();
        let entries = journal.lines().map(|line| read(line).expect("a line"));
        let miscounts = Claims::of(&entries.collect::<Vec<_>>()).miscounts().len();
        (violations(&journal), miscounts)
    };
    let changed = |now: i64| vec![Violation::Changed("x".into(), 9, now)];
    assert_eq!(found([9; 4], [1, 2, 1], 1), (vec![], 0));
    assert_eq!(found([9, 10, 9, 9], [1, 2, 1], 1), (changed(10), 0));
    assert_eq!(found([9, 0, 9, 9], [1, 1, 1], 1), (changed(0), 1));
    // The release removes nothing, or the whole hold.
    assert_eq!(found([9; 4], [1, 2, 2], 0), (vec![], 1));
    assert_eq!(found([9, 9, 9, 0], [1, 2, 0], 2), (changed(0), 1));
    assert_eq!(found([9; 4], [2, 2, 2], 1), (vec![], 1));
}

#[test]
fn an_update_that_is_overwritten_is_found() {
    let lost = [Violation::LostUpdate("x".into(), 11)];
    let of = |writes: [String; 2]| violations(&(ask(0, 1, false) + &writes.concat()));
    assert_eq!(
        of([write(1, 1, 10, 0, Some(0)), write(2, 1, 11, 0, Some(1))]),
        lost
    );
    assert_eq!(
        of([write(1, 1, 12, 0, Some(0)), write(2, 1, 11, 1, Some(1))]),
        lost
    );
    assert_eq!(
        of([write(1, 1, 12, 0, Some(0)), write(2, 1, 11, 0, None)]),
        []
    );
}

/// Two holders of one lock with fences 10 and 11, the first until 50, and what they wrote: what is
/// wrong with that, and how many writes were delayed, late, and refused.
fn written(writes: &[String]) -> (Vec<Violation>, [u64; 3]) {
    let holds = [
        ask(0, 1, false),
        held(5, 1, 10, 100),
        release(50, 1),
        ask(1, 2, false),
        held(60, 2, 11, 160),
    ];
    let journal = holds.concat() + &writes.concat();
    let entries = journal.lines().map(|line| read(line).expect("a line"));
    let DelayedWrites { all, late, refused } =
        Claims::of(&entries.collect::<Vec<_>>()).delayed_writes();
    (violations(&journal), [all, late, refused])
}

#[test]
fn a_late_write_must_be_refused_after_a_later_holder_has_written() {
    let later = write(70, 2, 11, 0, Some(0));
    let refused = late(80, 1, 10, 0, None);
    assert_eq!(written(&[later.clone(), refused]), (vec![], [1, 1, 1]));
    let lost = vec![Violation::LostUpdate("x".into(), 10)];
    let accepted = late(80, 1, 10, 0, Some(1));
    assert_eq!(written(&[later, accepted]), (lost, [1, 1, 0]));
}

#[test]
fn a_late_write_may_be_accepted_before_a_later_holder_reads() {
    let in_time = late(40, 1, 10, 0, Some(0));
    let later = write(70, 2, 11, 1, Some(1));
    assert_eq!(written(&[in_time, later.clone()]), (vec![], [1, 0, 0]));
    let accepted = late(65, 1, 10, 0, Some(0));
    assert_eq!(written(&[accepted, later]), (vec![], [1, 1, 0]));
}

#[test]
fn a_line_that_a_kill_has_cut_is_an_error() {
    let whole = ask(0, 1, false);
    assert!(read(&whole).is_ok());
    assert!(read(&whole[..whole.len() / 2]).is_err());
}

#[test]
#[should_panic(expected = "a journal without the request")]
fn a_line_without_its_request_is_an_error() {
    violations(&line(0, 1, What::Release));
}
