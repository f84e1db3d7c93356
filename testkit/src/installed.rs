//! Where the server and the module are.

use std::path::{Path, PathBuf};

/// The folder of the project.
pub fn project_folder() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().expect("a workspace").to_owned()
}

/// The server under test, or what to do to get one.
pub fn find_server() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os("REDIS_SERVER") {
        return Ok(absolute(named.into()));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = ["redis-server", "valkey-server"]
        .into_iter()
        .flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(name)))
        .find(|candidate| candidate.is_file());
    found.ok_or_else(|| {
        "no redis-server or valkey-server in PATH: install one (`make setup`), or set REDIS_SERVER"
            .to_owned()
    })
}

/// Servers start in folders of their own. A name without a folder is left to PATH.
fn absolute(path: PathBuf) -> PathBuf {
    if path.components().count() == 1 {
        return path;
    }
    std::path::absolute(&path).unwrap_or(path)
}

/// The module under test, or what to do to get it.
pub fn find_module() -> Result<PathBuf, String> {
    let path = std::env::var_os("REDISLOCK_SO")
        .map_or_else(|| project_folder().join("redislock.so"), PathBuf::from);
    path.canonicalize()
        .map_err(|_| format!("no module {}: run `make build`", path.display()))
}

/// The module under test, which must be there.
#[track_caller]
pub fn module_path() -> PathBuf {
    find_module().unwrap_or_else(|error| panic!("{error}"))
}
