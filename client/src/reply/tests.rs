//! What the nodes may say, and what the client makes of it.

use super::*;

#[test]
fn numbers_null_and_arrays_follow_the_one_rule() {
    let array = |items: Vec<Value>| Reply::read(Ok(Value::Array(items)), 2);
    assert_eq!(Reply::read(Ok(Value::Int(7)), 1), Reply::Yes(7));
    assert_eq!(Reply::read(Ok(Value::Nil), 1), Reply::No);
    assert_eq!(Reply::read(Ok(Value::Nil), 2), Reply::No);
    assert_eq!(array(vec![Value::Int(7), Value::Int(7)]), Reply::Yes(7));
    assert_eq!(array(vec![Value::Nil, Value::Nil]), Reply::No);
    assert_eq!(array(vec![Value::Int(7), Value::Nil]), Reply::Part);
}

#[test]
fn a_node_that_answers_nonsense_is_named_so_and_never_counts() {
    let array = |numbers: &[i64]| Value::Array(numbers.iter().copied().map(Value::Int).collect());
    let nonsense = [
        (1, Value::Int(0)),
        (1, Value::Int(-3)),
        (1, Value::Okay),
        (1, Value::BulkString(b"7".to_vec())),
        (1, array(&[])),
        (1, array(&[7])),
        (2, Value::Int(7)),
        (2, array(&[])),
        (2, array(&[7])),
        (2, array(&[7, 7, 7])),
        (2, array(&[7, 0])),
        (2, Value::Array(vec![Value::Int(7), array(&[7])])),
    ];
    for (keys, value) in nonsense {
        let reply = Reply::read(Ok(value.clone()), keys);
        assert!(
            matches!(reply, Reply::Trouble(Verdict::Garbage(_))),
            "{value:?} gave {reply:?} for {keys} keys"
        );
    }
}

#[test]
fn the_end_of_a_quarantine_is_read_from_its_error() {
    let error = redis::make_extension_error(
        "QUARANTINE".into(),
        Some("no grants yet, retry in 1500 ms".into()),
    );
    let left = Duration::from_millis(1500);
    assert_eq!(
        trouble(&error),
        Verdict::Quarantined {
            retry_in: Some(left)
        }
    );
}

#[test]
fn what_is_left_of_a_hold_is_read_from_the_refusal_of_an_extension() {
    let refused = |code: &str, text: &str| {
        let error = redis::make_extension_error(code.into(), Some(text.into()));
        left_of_hold(&trouble(&error))
    };
    let text = "the lease would exceed MAXHOLD or lock.max-hold, 1500 ms left";
    let left = Some(Duration::from_millis(1500));
    assert_eq!(refused("LOCKLIMIT", text), left);
    assert_eq!(refused("ERR", text), None);
    assert_eq!(refused("LOCKLIMIT", "the ttl is above lock.max-ttl"), None);
    assert_eq!(refused("LOCKLIMIT", "as soon as there is no ms left"), None);
}

fn map(fields: &[(&str, Value)]) -> Value {
    Value::Map(
        fields
            .iter()
            .map(|(name, value)| (text(name), value.clone()))
            .collect(),
    )
}

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

fn node(version: &str, role: &str, time: i64) -> Value {
    let mut fields = vec![
        ("version", text(version)),
        ("role", text(role)),
        ("incarnation", text("a")),
        ("time", Value::Int(time)),
    ];
    let numbers = ["quarantine", "durable", "fence", "locks", "waiters"];
    let numbers = numbers.into_iter().chain(["max-ttl"]);
    fields.extend(numbers.map(|name| (name, Value::Int(1))));
    map(&fields)
}

#[test]
fn a_clock_is_as_far_ahead_as_it_reads_more_than_ours() {
    let ours = 1_700_000_000_000_000;
    let wall = UNIX_EPOCH + Duration::from_micros(ours as u64);
    let (asked, answered) = (Moment::at_millis(1_000), Moment::at_millis(1_010));
    for lead in [-2_500_000, 0, 70] {
        // The reply is 5 ms old when it arrives.
        let value = node("0.1.0", "master", ours - 5_000 + lead);
        let status = NodeStatus::read_at(value, asked, answered, wall).unwrap();
        assert_eq!(status.clock_lead, lead);
        let at_boot = Duration::from_micros((ours + lead) as u64) - answered.since_boot();
        assert_eq!(status.wall_at_boot, at_boot);
    }
    assert!(matches!(
        NodeStatus::read(map(&[("version", text("0.1.0"))]), asked),
        Err(Verdict::Garbage(text)) if text == "LOCK.NODE without time"
    ));
}

#[test]
fn a_node_that_cannot_serve_is_refused_with_the_reason() {
    let read = |value| {
        let status = NodeStatus::read(value, Moment::now())?;
        status.checked().map(|status| status.incarnation)
    };
    assert_eq!(read(node("0.1.0", "master", 1)), Ok("a".to_owned()));
    assert_eq!(read(node("0.1.0", "slave", 1)), Err(Verdict::Replica));
    assert_eq!(read(node("0.1.0", "replica", 1)), Err(Verdict::Replica));
    let old = Verdict::ModuleTooOld {
        version: "0.0.9".to_owned(),
    };
    assert_eq!(read(node("0.0.9", "master", 1)), Err(old));
    assert!(matches!(read(Value::Okay), Err(Verdict::Garbage(_))));
    assert!(matches!(read(map(&[])), Err(Verdict::Garbage(_))));
}

#[test]
fn the_holder_is_read_from_both_forms_of_a_map() {
    let flat = |fields: &[(&str, Value)]| {
        let pairs = fields.iter();
        Value::Array(
            pairs
                .flat_map(|(name, value)| [text(name), value.clone()])
                .collect(),
        )
    };
    let holder = [
        ("owner", text("job-7")),
        ("fingerprint", text("0a")),
        ("holds", Value::Int(1)),
        ("fence", Value::Int(9)),
        ("ttl", Value::Int(250)),
        ("age", Value::Int(1)),
    ];
    let lock = [
        ("mode", text("exclusive")),
        ("limit", Value::Int(0)),
        ("waiters", Value::Int(2)),
        ("oldest-wait", Value::Int(5)),
        ("holders", Value::Array(vec![flat(&holder)])),
    ];
    let expected = Verdict::Held {
        owner: Some("job-7".to_owned()),
        remaining: Some(Duration::from_millis(250)),
        waiters: 2,
    };
    assert_eq!(
        LockStatus::read(map(&lock)).unwrap().unwrap().verdict(),
        expected
    );
    assert_eq!(
        LockStatus::read(flat(&lock)).unwrap().unwrap().verdict(),
        expected
    );
}

#[test]
fn an_answer_without_holders_is_no_answer() {
    assert!(matches!(
        LockStatus::read(map(&[("mode", Value::Int(1))])),
        Err(Verdict::Garbage(text)) if text == "LOCK.INFO without holders"
    ));
}
