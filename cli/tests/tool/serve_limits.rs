//! `redlock serve` with many pages, and with pages that do not read.

use std::io::Read;
use std::net::TcpStream;

use redislock_testkit::{wait_patiently, wait_until};

use crate::masters;
use crate::serve::{Serving, acquire, complete, open_page};

pub fn resident_kib(serving: &mut Serving) -> u64 {
    let pid = serving.running.pid().as_raw_nonzero();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn two_hundred_pages_are_served_in_bounded_memory() {
    let servers = masters::<1>();
    for lock in 0..60 {
        acquire(&servers[0], &format!("lock:{lock}"));
    }
    let mut serving = Serving::start(&servers, &[]);
    complete(&serving);
    let mut pages: Vec<TcpStream> = (0..200).map(|_| open_page(&serving)).collect();
    let before = resident_kib(&mut serving);
    // All of them get news, twice, while some of them do not read.
    for page in pages.iter_mut().skip(100) {
        let mut text = Vec::new();
        let mut some = [0; 65_536];
        while text.windows(6).filter(|bytes| bytes == b"data: ").count() < 2 {
            let count = page.read(&mut some).unwrap();
            assert!(count > 0, "a page was closed");
            text.extend_from_slice(&some[..count]);
        }
    }
    let grown = resident_kib(&mut serving).saturating_sub(before);
    assert!(grown < 100 * 1024, "{grown} KiB for 200 pages");
    assert_eq!(serving.get("/healthz", "").1, "ok\n");
}

/// The status of a page that was opened.
fn status(page: &mut TcpStream) -> String {
    let mut head = [0; 12];
    page.read_exact(&mut head).unwrap();
    String::from_utf8_lossy(&head).into_owned()
}

#[test]
fn one_page_too_many_is_refused() {
    let servers = masters::<1>();
    let serving = Serving::start(&servers, &["--interval", "10s"]);
    let mut pages: Vec<TcpStream> = (0..256).map(|_| open_page(&serving)).collect();
    for page in &mut pages {
        assert_eq!(status(page), "HTTP/1.1 200");
    }
    let (head, body) = serving.get("/events", "");
    assert!(head.starts_with("http/1.1 503"), "{head}");
    assert_eq!(body, "256 pages are open already: close one\n");
    drop(pages);
    wait_until("there is room again", || {
        status(&mut open_page(&serving)) == "HTTP/1.1 200"
    });
}

#[test]
fn a_browser_that_does_not_read_is_dropped() {
    let servers = masters::<1>();
    for lock in 0..60 {
        let _: u64 = servers[0].run(&[
            "LOCK.ACQUIRE",
            &format!("{lock}{}", "x".repeat(100)),
            "t",
            "600000",
        ]);
    }
    let serving = Serving::start(&servers, &["--interval", "100ms"]);
    complete(&serving);
    let _silent = open_page(&serving);
    let mut connection = String::new();
    let port = serving
        .address()
        .rsplit_once(':')
        .unwrap()
        .1
        .parse::<u16>()
        .unwrap();
    // The kernel's table of connections: those of the server that are established.
    wait_patiently("the connection is closed", || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let local = format!(":{port:04X}");
        let is_open = |line: &&str| {
            let mut words = line.split_whitespace().skip(1);
            words
                .next()
                .is_some_and(|address| address.ends_with(&local))
                && words.nth(1) == Some("01")
        };
        connection = table.lines().find(is_open).unwrap_or_default().to_owned();
        connection.is_empty()
    });
    assert_eq!(serving.get("/healthz", "").1, "ok\n");
}
