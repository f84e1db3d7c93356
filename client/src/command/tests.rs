//! What a request may ask for, and its token.

use super::*;

fn spec() -> Spec {
    Spec::new(vec![b"x".to_vec()])
}

fn problem(spec: &Spec, nodes: usize) -> String {
    match spec.check(nodes, DEFAULT_NODE_TIMEOUT) {
        Err(Error::Invalid(problem)) => problem,
        other => panic!("expected a problem, got {other:?}"),
    }
}

#[test]
fn an_ordinary_request_is_fine() {
    assert_eq!(spec().check(5, DEFAULT_NODE_TIMEOUT), Ok(()));
}

#[test]
fn a_ttl_of_zero_or_below_what_node_timeouts_allow_is_refused() {
    for ttl in [
        Duration::ZERO,
        Duration::from_millis(1),
        DEFAULT_NODE_TIMEOUT * 3,
    ] {
        let spec = Spec { ttl, ..spec() };
        assert!(problem(&spec, 1).contains("too short"));
    }
}

#[test]
fn no_span_is_too_extreme_to_be_checked() {
    let endless = Spec {
        ttl: Duration::MAX,
        ..spec()
    };
    assert!(problem(&endless, 1).contains("longer than any node allows"));
    let tiny = Spec {
        ttl: Duration::from_micros(10),
        ..spec()
    };
    for node_timeout in [Duration::from_nanos(1), Duration::MAX] {
        let error = tiny.check(1, node_timeout).unwrap_err();
        assert!(error.to_string().contains("too short"), "{error}");
    }
}

#[test]
fn what_has_no_quorum_is_refused_over_several_nodes() {
    let limited = Spec {
        shared: true,
        limit: Some(3),
        ..spec()
    };
    let ephemeral = Spec {
        ephemeral: true,
        ..spec()
    };
    assert!(problem(&limited, 3).contains("single node"));
    assert!(problem(&ephemeral, 3).contains("single node"));
    assert_eq!(limited.check(1, DEFAULT_NODE_TIMEOUT), Ok(()));
    assert_eq!(ephemeral.check(1, DEFAULT_NODE_TIMEOUT), Ok(()));
}

#[test]
fn nonsense_says_what_to_change() {
    assert!(problem(&Spec::new(Vec::new()), 1).contains("at least one"));
    let doubled = Spec::new(vec![b"x".to_vec(), b"y".to_vec(), b"x".to_vec()]);
    assert!(problem(&doubled, 1).contains("twice"));
    let unshared = Spec {
        limit: Some(2),
        ..spec()
    };
    assert!(problem(&unshared, 1).contains("shared"));
    let nobody = Spec {
        shared: true,
        limit: Some(0),
        ..spec()
    };
    assert!(problem(&nobody, 1).contains("1 or more"));
    let capped = Spec {
        max_hold: Some(Duration::from_secs(1)),
        ..spec()
    };
    assert!(problem(&capped, 1).contains("max_hold"));
    let long = Spec {
        label: Some("x".repeat(257)),
        ..spec()
    };
    assert!(problem(&long, 1).contains("256"));
    let none = Spec {
        replicas: Some(0),
        ..spec()
    };
    assert!(problem(&none, 1).contains("replicas"));
}

#[test]
fn a_name_of_any_bytes_can_be_shown() {
    assert_eq!(
        Spec::new(vec![vec![0, 255, b'a']]).name(),
        "lock \\x00\\xffa"
    );
}

#[test]
fn a_token_is_never_shown() {
    let token = Token::fresh();
    let text = String::from_utf8(token.0.to_vec()).unwrap();
    assert!(!format!("{token:?}").contains(&text));
}

/// Servers save only this text of a UUID in the short form.
#[test]
fn a_token_is_a_lower_case_hyphenated_uuid() {
    let token = Token::fresh();
    let text = std::str::from_utf8(token.as_bytes()).unwrap();
    let uuid = uuid::Uuid::parse_str(text).unwrap();
    assert_eq!(uuid.get_version_num(), 4);
    assert_eq!(uuid.hyphenated().to_string(), text);
}

#[test]
fn every_token_is_another() {
    assert_ne!(Token::fresh().0, Token::fresh().0);
}
