//! Which module may use which: the diagram of docs/DESIGN.md, read off the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module, and the modules of the same crate that it may use.
type Allowed = &'static [(&'static str, &'static [&'static str])];

/// Every module of the adapter may use these.
const BASE: &[&str] = &["alarm", "clock", "edge", "ffi", "global", "server"];

const ADAPTER: Allowed = &[
    (
        "command",
        &[
            "config",
            "effects",
            "keyspace",
            "node",
            "removals",
            "replication",
            "reply",
            "waiters",
            "warnings",
        ],
    ),
    (
        "events",
        &[
            "config",
            "effects",
            "keyspace",
            "node",
            "quarantine",
            "removals",
            "replication",
            "waiters",
            "warnings",
        ],
    ),
    ("data_type", &["config", "effects", "keyspace", "node"]),
    (
        "keyspace",
        &["config", "effects", "node", "replication", "waiters"],
    ),
    ("warnings", &["config", "node", "quarantine", "replication"]),
    ("replication", &["config", "node", "quarantine"]),
    ("quarantine", &["config", "node", "reply"]),
    ("waiters", &["node", "reply"]),
    ("info", &["config", "node"]),
    ("config", &["node"]),
    ("node", &["removals"]),
    ("removals", &[]),
    ("effects", &[]),
    ("reply", &[]),
    // The base itself.
    ("alarm", &[]),
    ("server", &[]),
    ("edge", &[]),
    ("clock", &[]),
    ("global", &[]),
    ("ffi", &[]),
];

const CORE: Allowed = &[
    (
        "table",
        &[
            "fence",
            "small",
            "lock",
            "payload",
            "quarantine",
            "queue",
            "replication_lease",
            "slots",
            "stats",
            "steady",
            "time",
            "token",
            "wheel",
            "wire",
        ],
    ),
    (
        "queue",
        &["small", "lock", "slots", "steady", "time", "token"],
    ),
    ("wire", &["fence", "lock", "time", "token"]),
    ("payload", &["fence", "lock", "time"]),
    ("lock", &["time", "token"]),
    ("replication_lease", &["time"]),
    ("quarantine", &["time"]),
    ("wheel", &["time"]),
    ("token", &["bytes"]),
    ("fence", &["time"]),
    ("small", &[]),
    ("slots", &[]),
    ("stats", &["time"]),
    ("steady", &["small"]),
    ("time", &[]),
    ("bytes", &[]),
];

/// Every module of the client may use these.
const CLIENT_BASE: &[&str] = &["error", "host"];

/// From what the caller sees down to what is sent.
const CLIENT: Allowed = &[
    (
        "blocking",
        &["client", "guard", "link", "lock", "redlock", "release"],
    ),
    (
        "election",
        &[
            "command", "guard", "lock", "quorum", "redlock", "release", "reply", "round",
        ],
    ),
    (
        "observe",
        &[
            "command", "guard", "link", "node", "quorum", "redlock", "release", "reply", "round",
        ],
    ),
    (
        "redlock",
        &[
            "client", "command", "fleet", "link", "lock", "node", "quorum",
        ],
    ),
    (
        "lock",
        &["acquire", "client", "command", "guard", "hold", "release"],
    ),
    ("guard", &["command", "hold", "release"]),
    (
        "acquire",
        &[
            "attempt", "client", "command", "fleet", "hold", "link", "node", "quorum", "reply",
            "round",
        ],
    ),
    (
        "hold",
        &[
            "attempt", "client", "command", "keeper", "link", "quorum", "release", "reply", "round",
        ],
    ),
    (
        "attempt",
        &[
            "client", "command", "link", "node", "quorum", "release", "reply", "round",
        ],
    ),
    (
        "release",
        &[
            "client",
            "command",
            "quorum",
            "reply",
            "round",
            "simulation",
        ],
    ),
    ("client", &["command", "fleet", "keeper"]),
    ("fleet", &["keeper", "link", "node", "quorum", "round"]),
    ("round", &["command", "node", "reply"]),
    ("node", &["command", "link", "quorum", "reply"]),
    ("link", &["command", "reply", "simulation"]),
    ("keeper", &[]),
    ("reply", &[]),
    ("command", &[]),
    ("quorum", &["simulation"]),
    ("host", &["simulation"]),
    ("error", &[]),
    ("simulation", &[]),
];

/// Which modules of a crate use which.
type Arrows = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every Rust file below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of sources");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let files = paths.flat_map(|path| {
        if path.is_dir() {
            sources(&path)
        } else {
            vec![path]
        }
    });
    files
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

/// A source without comments and without its unit tests.
fn code_of(source: &str) -> String {
    let lines = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    let tests = ["mod tests {", "pub(crate) mod tests {"]
        .iter()
        .find_map(|tests| code.find(&format!("#[cfg(test)]\n{tests}")));
    code[..tests.unwrap_or(code.len())].to_owned()
}

/// The names that stand behind a path: one, or those of a group in braces.
fn names_at(code: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let name = |text: &str| text.find(|c| !is_name(c)).unwrap_or(text.len());
    let Some(group) = code.strip_prefix('{') else {
        return vec![&code[..name(code)]];
    };
    let (mut names, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                let part = group[start..at].trim();
                names.extend(Some(&part[..name(part)]).filter(|name| !name.is_empty()));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names
}

/// The names of the crate's root that a file uses, which is `depth` modules below the root.
fn names_used(source: &str, depth: usize) -> BTreeSet<String> {
    let code = code_of(source);
    let up = "super::".repeat(depth);
    let paths = ["crate::", &up].map(|path| {
        let starts = code.match_indices(path).filter(|(at, _)| {
            let before = code[..*at].chars().next_back();
            before.is_none_or(|c| !(c.is_alphanumeric() || c == '_' || c == ':'))
        });
        starts.flat_map(|(at, _)| names_at(&code[at + path.len()..]))
    });
    let [by_crate, by_super] = paths;
    by_crate
        .chain(by_super)
        .filter(|name| *name != "super" && *name != "self")
        .map(str::to_owned)
        .collect()
}

/// What the root re-exports: the module of each name.
fn exports(root: &str) -> BTreeMap<String, String> {
    let code = code_of(root);
    let uses = code.split(';').filter_map(|line| {
        let (_, path) = line.rsplit_once("use ")?;
        let path = path.strip_prefix("crate::").unwrap_or(path);
        let (module, rest) = path.split_once("::")?;
        Some((module.to_owned(), rest.to_owned()))
    });
    uses.flat_map(|(module, rest)| {
        let names: Vec<_> = rest
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .map(str::to_owned)
            .collect();
        names.into_iter().map(move |name| (name, module.clone()))
    })
    .collect()
}

/// Which modules of the crate in a folder use which.
fn arrows_of(folder: &Path) -> Arrows {
    let roots = ["lib.rs", "main.rs"].map(|name| folder.join(name));
    let root = roots.iter().find(|root| root.exists()).expect("a root");
    let exports = exports(&read(root));
    let root_code = read(root);
    let in_tests_only = |module: &str| root_code.contains(&format!("#[cfg(test)]\nmod {module};"));
    let mut used: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in sources(folder) {
        let inside = file
            .strip_prefix(folder)
            .expect("inside")
            .with_extension("");
        let mut parts: Vec<_> = inside.iter().map(|part| part.to_string_lossy()).collect();
        if parts.last().is_some_and(|last| last == "mod") {
            parts.pop();
        }
        // Unit tests in a file of their own may use everything, like those in other files.
        if parts.last().is_some_and(|last| last == "tests") {
            continue;
        }
        let module = parts[0].to_string();
        let is_root = roots.contains(&file) || file.starts_with(folder.join("bin"));
        if !is_root && !in_tests_only(&module) {
            let names = names_used(&read(&file), parts.len());
            used.entry(module).or_default().extend(names);
        }
    }
    let modules: BTreeSet<_> = used.keys().cloned().collect();
    let module_of = |name: &String| {
        let module = Some(name).filter(|name| modules.contains(*name));
        module.or_else(|| exports.get(name)).cloned()
    };
    used.into_iter()
        .map(|(module, names)| {
            let uses = names.iter().filter_map(module_of);
            let uses = uses.filter(|used| *used != module && modules.contains(used));
            let uses = uses.collect();
            (module, uses)
        })
        .collect()
}

/// What the sources and the table disagree about. `base` may be used by all.
fn disagreements(arrows: &Arrows, allowed: Allowed, base: &[&str]) -> Vec<String> {
    let table: BTreeMap<_, BTreeSet<_>> = allowed
        .iter()
        .map(|(module, uses)| (*module, uses.iter().copied().collect()))
        .collect();
    let mut found = Vec::new();
    for (module, uses) in arrows {
        let Some(may_use) = table.get(module.as_str()) else {
            found.push(format!("{module} is not in the table"));
            continue;
        };
        let uses: BTreeSet<_> = uses.iter().map(String::as_str).collect();
        let wrong = uses.difference(may_use).filter(|used| !base.contains(used));
        found.extend(wrong.map(|used| format!("{module} must not use {used}")));
        let unused = may_use.difference(&uses);
        found.extend(unused.map(|used| format!("{module} no longer uses {used}")));
    }
    let gone = table.keys().filter(|module| !arrows.contains_key(**module));
    found.extend(gone.map(|module| format!("{module} is in the table and nowhere else")));
    found
}

/// Modules that use each other, one after the other, if there are any.
fn cycle(arrows: &Arrows) -> Option<Vec<String>> {
    fn visit<'a>(
        module: &'a str,
        arrows: &'a Arrows,
        path: &mut Vec<&'a str>,
        done: &mut BTreeSet<&'a str>,
    ) -> Option<Vec<String>> {
        if let Some(start) = path.iter().position(|before| *before == module) {
            return Some(path[start..].iter().map(ToString::to_string).collect());
        }
        if done.contains(module) {
            return None;
        }
        path.push(module);
        let mut uses = arrows.get(module).into_iter().flatten();
        let found = uses.find_map(|used| visit(used, arrows, path, done));
        path.pop();
        done.insert(module);
        found
    }
    let mut done = BTreeSet::new();
    let mut modules = arrows.keys();
    modules.find_map(|module| visit(module, arrows, &mut Vec::new(), &mut done))
}

#[test]
fn the_adapter_uses_only_what_the_table_allows() {
    let arrows = arrows_of(&root().join("src"));
    assert_eq!(disagreements(&arrows, ADAPTER, BASE), [""; 0]);
}

#[test]
fn the_core_uses_only_what_the_table_allows() {
    let arrows = arrows_of(&root().join("core/src"));
    assert_eq!(disagreements(&arrows, CORE, &[]), [""; 0]);
}

#[test]
fn the_client_uses_only_what_the_table_allows() {
    let arrows = arrows_of(&root().join("client/src"));
    assert_eq!(disagreements(&arrows, CLIENT, CLIENT_BASE), [""; 0]);
}

#[test]
fn no_modules_use_each_other() {
    for folder in ["src", "core/src", "client/src", "cli/src", "bench/src"] {
        let arrows = arrows_of(&root().join(folder));
        assert!(arrows.len() > 5, "{folder}: {arrows:?}");
        assert_eq!(cycle(&arrows), None, "{folder}");
    }
}

#[test]
fn only_the_keyspace_opens_keys() {
    for file in sources(&root().join("src")) {
        let opens = code_of(&read(&file)).contains("RedisModule_OpenKey");
        let may_open = file.ends_with("src/keyspace/key.rs");
        assert_eq!(opens, may_open, "{}", file.display());
    }
}

#[test]
fn the_map_of_the_module_names_every_file() {
    let map = read(&root().join("src/lib.rs"));
    for (module, _) in ADAPTER {
        let named = [
            format!("//! | `{module}.rs` |"),
            format!("//! | `{module}/` |"),
        ];
        assert!(named.iter().any(|line| map.contains(line)), "{module}");
    }
}

#[test]
fn the_map_of_the_client_names_every_file() {
    let map = read(&root().join("docs/CLIENT.md"));
    for (module, _) in CLIENT {
        assert!(map.contains(&format!("`{module}.rs`")), "{module}");
    }
}

/// A crate of two modules in a folder of its own.
fn planted(files: &[(&str, &str)]) -> Arrows {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    arrows_of(folder.path())
}

#[test]
fn a_planted_arrow_is_found_however_it_is_written() {
    let forms = [
        "use crate::high;",
        "use crate::{base, high::Thing};",
        "use crate::{\n    base::{Base, Other},\n    high,\n};",
        "use super::high::Thing;",
        "fn f() { crate::high::act() }",
        "macro_rules! m { () => { $crate::high::act() } }",
        "use crate::Thing;",
    ];
    let modules = "mod base;\nmod high;\nmod low;\n";
    let roots =
        ["", "crate::"].map(|path| format!("{modules}pub use {path}high::{{Other, Thing}};\n"));
    for (form, root) in forms
        .iter()
        .flat_map(|form| roots.iter().map(move |root| (form, root)))
    {
        let arrows = planted(&[
            ("lib.rs", root),
            ("base.rs", ""),
            ("high.rs", "use crate::low;"),
            ("low.rs", form),
        ]);
        let table: Allowed = &[("base", &[]), ("high", &["low"]), ("low", &[])];
        let expected = ["low must not use high"];
        assert_eq!(disagreements(&arrows, table, &["base"]), expected, "{form}");
        assert_eq!(
            cycle(&arrows).map(|modules| modules.len()),
            Some(2),
            "{form}"
        );
    }
}

#[test]
fn other_text_is_not_taken_for_a_dependency() {
    let forms = [
        "// use crate::high;",
        "use redislock_core::high;",
        "use crate::low::high;",
        "#[cfg(test)]\nmod tests {\n    use crate::high;\n}",
    ];
    for form in forms {
        let arrows = planted(&[("lib.rs", ""), ("high.rs", ""), ("low/mod.rs", form)]);
        assert_eq!(arrows["low"], BTreeSet::new(), "{form}");
    }
    let inner = "use super::high;\nuse super::super::base;";
    let arrows = planted(&[
        ("lib.rs", ""),
        ("base.rs", ""),
        ("high.rs", ""),
        ("low/inner.rs", inner),
    ]);
    assert_eq!(arrows["low"], BTreeSet::from(["base".to_owned()]));
}

#[test]
fn a_table_that_says_too_much_is_found() {
    let arrows = planted(&[("lib.rs", ""), ("a.rs", ""), ("b.rs", "")]);
    let table: Allowed = &[("a", &["b"]), ("c", &[])];
    let expected = [
        "a no longer uses b",
        "b is not in the table",
        "c is in the table and nowhere else",
    ];
    assert_eq!(disagreements(&arrows, table, &[]), expected);
}
