//! The picture of an episode: faults, and for each lock who waited, who held it, and with which
//! fences. It is readable on a light and on a dark page.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use redislock_testkit::history::{Claim, Claims, Entry, What};

use super::episode::{NEXT, Record, start_of};
use super::plan::FAMILIES;

const WIDTH: f64 = 1180.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 16.0;
const ROW: f64 = 15.0;
const FENCES: f64 = 56.0;

const STYLE: &str = "\
text{font:11px system-ui,sans-serif;fill:#333}
.title{font-size:15px;font-weight:600}.head{font-weight:600}.small{font-size:10px;fill:#666}
.on{font-size:9.5px;fill:#fff}.page{fill:#fff}.grid{stroke:#d9dce1;stroke-width:1}
.fault{fill:#d9480f}.idle{fill:none}.shade{fill:#d9480f;fill-opacity:.045}
.hold{fill:#1971c2}.shared{fill:#2f9e44}.wait{stroke:#8a94a3;stroke-width:1.5}
.lost{stroke:#c2255c;stroke-width:2}.fence{fill:none;stroke:#1971c2;stroke-width:1.2}
.dot{fill:#1971c2}.healed{stroke:#2f9e44;stroke-width:1.5;stroke-dasharray:4 3}
@media (prefers-color-scheme:dark){text{fill:#dfe3e8}.small{fill:#9aa4b1}.page{fill:#15181c}
.on{fill:#15181c}.grid{stroke:#333a44}.fault{fill:#ff922b}.shade{fill:#ff922b;fill-opacity:.06}
.hold{fill:#4dabf7}.shared{fill:#69db7c}.wait{stroke:#7d8896}.lost{stroke:#f783ac}
.fence{stroke:#4dabf7}.dot{fill:#4dabf7}.healed{stroke:#69db7c}}";

const LEGEND: &str = r#"<g transform="translate(8,38)">
<line class="wait" x1="0" y1="0" x2="22" y2="0"/><text x="28" y="4">waits</text>
<rect class="hold" x="80" y="-5" width="22" height="10" rx="1.5"/>
<text x="108" y="4">holds alone</text>
<rect class="shared" x="190" y="-5" width="22" height="10" rx="1.5"/>
<text x="218" y="4">shares</text>
<line class="lost" x1="272" y1="-6" x2="272" y2="6"/>
<text x="280" y="4">is told that the lock is lost</text>
<rect class="fault" x="444" y="-5" width="22" height="10" rx="1.5"/>
<text x="472" y="4">fault</text>
<line class="healed" x1="520" y1="-6" x2="520" y2="6"/>
<text x="528" y="4">faults are over, every client acquires every lock</text></g>"#;

/// Draws an episode as SVG.
pub fn draw(record: &Record, title: &str) -> String {
    let claims = Claims::of(&record.entries);
    let mut canvas = Canvas::new(record);
    canvas.faults(&record.entries);
    let mut clients: BTreeSet<u32> = BTreeSet::new();
    clients.extend(claims.all().map(|claim| claim.client % NEXT));
    for lock in claims.locks() {
        let on = |claim: &&Claim| claim.locks.iter().any(|name| name == lock);
        let its: Vec<&Claim> = claims.all().filter(on).collect();
        canvas.lock(lock, &its, &clients, &record.entries);
    }
    canvas.finish(title)
}

/// As text of an SVG.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

struct Canvas {
    start: u64,
    length: f64,
    healed: u64,
    y: f64,
    body: String,
    /// Vertical bands behind everything: from, to.
    shades: Vec<(f64, f64)>,
}

impl Canvas {
    fn new(record: &Record) -> Self {
        let start = start_of(&record.entries);
        let last = record.entries.iter().map(|entry| entry.at).max();
        Self {
            start,
            length: last.unwrap_or(start).saturating_sub(start).max(1) as f64,
            healed: record.healed,
            y: 66.0,
            body: String::new(),
            shades: Vec::new(),
        }
    }

    fn x(&self, at: u64) -> f64 {
        let since = at.saturating_sub(self.start) as f64;
        LEFT + (since / self.length).min(1.0) * (WIDTH - LEFT - RIGHT)
    }

    // Writing to a string does not fail.
    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.body, "{element}");
    }

    fn label(&mut self, text: &str, class: &str) {
        let y = self.y + ROW - 4.0;
        self.put(format_args!(
            r#"<text class="{class}" x="8" y="{y:.1}">{text}</text>"#
        ));
    }

    fn bar(&mut self, class: &str, from: u64, to: u64, inset: f64, title: &str) {
        let (x, y, title) = (self.x(from), self.y + inset, escaped(title));
        let width = (self.x(to) - x).max(1.2);
        let height = ROW - 2.0 * inset;
        self.put(format_args!(
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"
rx="1.5"><title>{title}</title></rect>"#
        ));
    }

    /// The name of a bar, if there is space for it.
    fn caption(&mut self, from: u64, to: u64, name: &str) {
        let (x, end) = (self.x(from) + 3.0, self.x(to));
        if end - x > 5.2 * name.chars().count() as f64 {
            let (y, name) = (self.y + ROW - 4.5, escaped(name));
            self.put(format_args!(
                r#"<text class="on" x="{x:.1}" y="{y:.1}">{name}</text>"#
            ));
        }
    }

    fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        self.put(format_args!(
            r#"<line class="{class}" x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
            from.0, from.1, to.0, to.1
        ));
    }

    /// One row for each family that has faults.
    fn faults(&mut self, entries: &[Entry]) {
        self.label("faults", "head");
        self.y += ROW;
        for (family, _) in FAMILIES {
            let of_family = |entry: &&Entry| match &entry.what {
                What::Fault { family: its, .. } => its == family,
                _ => false,
            };
            let marks: Vec<&Entry> = entries.iter().filter(of_family).collect();
            if marks.is_empty() {
                continue;
            }
            self.label(family, "small");
            for (at, mark) in marks.iter().enumerate() {
                let What::Fault {
                    name, begins: true, ..
                } = &mark.what
                else {
                    continue;
                };
                let ends = marks[at..].iter().find(|other| {
                    matches!(&other.what, What::Fault { name: n, begins: false, .. } if n == name)
                });
                let end = ends.map_or(mark.at, |end| end.at);
                let had_effect = ends.is_none_or(|end| {
                    !matches!(
                        end.what,
                        What::Fault {
                            happened: Some(false),
                            ..
                        }
                    )
                });
                if !had_effect {
                    self.bar(
                        "grid idle",
                        mark.at,
                        end,
                        2.0,
                        &format!("{name}: no effect"),
                    );
                    continue;
                }
                self.shades.push((self.x(mark.at), self.x(end)));
                self.bar("fault", mark.at, end, 2.0, name);
                self.caption(mark.at, end, name);
            }
            self.y += ROW;
        }
        self.y += 8.0;
    }

    /// Who waits for a lock and who holds it, one row for each client, and the fences.
    fn lock(&mut self, lock: &str, its: &[&Claim], clients: &BTreeSet<u32>, entries: &[Entry]) {
        self.label(lock, "head");
        self.y += ROW;
        for client in clients {
            self.label(&format!("client {client}"), "small");
            let of_client = its.iter().filter(|claim| claim.client % NEXT == *client);
            for claim in of_client {
                self.claim(claim);
            }
            let lost = entries.iter().filter(|entry| {
                let is_its = its.iter().any(|claim| claim.id == entry.claim);
                is_its && entry.client % NEXT == *client && matches!(entry.what, What::Lost)
            });
            let lost: Vec<u64> = lost.map(|entry| entry.at).collect();
            for at in lost {
                let (x, y) = (self.x(at), self.y);
                self.line("lost", (x, y + 1.0), (x, y + ROW - 1.0));
            }
            self.y += ROW;
        }
        self.fences(its);
        self.y += 10.0;
    }

    fn claim(&mut self, claim: &Claim) {
        let middle = self.y + ROW / 2.0;
        let waited = claim.held.map(|(at, _)| at).or(claim.failed);
        let from = self.x(claim.asked);
        let to = self.x(waited.unwrap_or(claim.asked));
        self.line("wait", (from, middle), (to, middle));
        if let Some((at, fence)) = claim.held {
            let end = claim.released.unwrap_or(u64::MAX).min(claim.until).max(at);
            let class = if claim.exclusive { "hold" } else { "shared" };
            let lasted = (end - at) / 1000;
            self.bar(class, at, end, 2.0, &format!("fence {fence}, {lasted} ms"));
        }
    }

    /// Each exclusive hold is a step: a line that falls would be a broken promise.
    fn fences(&mut self, its: &[&Claim]) {
        let held = its.iter().filter(|claim| claim.exclusive);
        let mut held: Vec<(u64, u64)> = held.filter_map(|claim| claim.held).collect();
        held.sort_unstable();
        self.label("fences", "small");
        let mut ranks: Vec<u64> = held.iter().map(|(_, fence)| *fence).collect();
        ranks.sort_unstable();
        let y = |fence: u64| {
            let rank = ranks.binary_search(&fence).unwrap_or(0) as f64;
            let part = rank / (ranks.len().max(2) - 1) as f64;
            self.y + FENCES - 4.0 - part * (FENCES - 8.0)
        };
        let points: Vec<(f64, f64)> = held.iter().map(|(at, f)| (self.x(*at), y(*f))).collect();
        let path: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        self.put(format_args!(
            r#"<polyline class="fence" points="{}"/>"#,
            path.join(" ")
        ));
        for (x, y) in points {
            self.put(format_args!(
                r#"<circle class="dot" cx="{x:.1}" cy="{y:.1}" r="1.3"/>"#
            ));
        }
        self.y += FENCES;
    }

    fn finish(self, title: &str) -> String {
        let (height, bottom) = (self.y + 26.0, self.y);
        let mut out = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0}" role="img"
aria-label="{title}"><style>{STYLE}</style>
<rect class="page" width="{WIDTH}" height="{height:.0}"/>
<text class="title" x="8" y="22">{title}</text>
{LEGEND}
"#
        );
        for (from, to) in &self.shades {
            let width = (to - from).max(1.0);
            let _ = writeln!(
                out,
                r#"<rect class="shade" x="{from:.1}" y="60" width="{width:.1}" height="{:.1}"/>"#,
                bottom - 60.0
            );
        }
        let seconds = self.length / 1e6;
        let step = [1.0, 2.0, 5.0, 10.0, 20.0, 60.0];
        let step = step.into_iter().find(|step| seconds / step <= 16.0);
        let step = step.unwrap_or(60.0);
        let mut second = 0.0;
        while second <= seconds {
            let x = self.x(self.start + (second * 1e6) as u64);
            let _ = writeln!(
                out,
                r#"<line class="grid" x1="{x:.1}" y1="60" x2="{x:.1}" y2="{bottom:.1}"/>
<text class="small" x="{x:.1}" y="{:.1}" text-anchor="middle">{second} s</text>"#,
                bottom + 14.0
            );
            second += step;
        }
        let healed = self.x(self.healed);
        let _ = writeln!(
            out,
            r#"<line class="healed" x1="{healed:.1}" y1="60" x2="{healed:.1}" y2="{bottom:.1}"/>"#
        );
        out + &self.body + "</svg>\n"
    }
}
