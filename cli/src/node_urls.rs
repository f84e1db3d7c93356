//! What `--node` and REDLOCK_NODES name: masters, a master that Sentinel knows, or a cluster.

/// The nodes of a deployment. Every URL has the form that redis-rs reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeUrls {
    /// Independent masters: a lock is held by a majority of them.
    Masters(Vec<String>),
    /// The master that these Sentinels know by its name.
    Sentinel {
        login: Login,
        name: String,
        sentinels: Vec<String>,
    },
    /// A cluster, with some of its nodes.
    Cluster { login: Login, seeds: Vec<String> },
}

impl NodeUrls {
    /// The URLs that were given: of masters, Sentinels, or nodes of a cluster.
    pub fn each(&self) -> &[String] {
        match self {
            Self::Masters(urls) => urls,
            Self::Sentinel { sentinels, .. } => sentinels,
            Self::Cluster { seeds, .. } => seeds,
        }
    }

    /// The login of nodes that were not given by a URL of their own.
    pub fn login(&self) -> Option<&Login> {
        match self {
            Self::Masters(_) => None,
            Self::Sentinel { login, .. } | Self::Cluster { login, .. } => Some(login),
        }
    }
}

/// What the URLs of all nodes have in common, behind Sentinel or in a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Login {
    /// `redis` or `rediss`.
    scheme: String,
    /// `user:password@` or nothing.
    user: String,
}

impl Login {
    pub fn url(&self, host: &str, port: u64) -> String {
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        format!("{}://{}{host}:{port}", self.scheme, self.user)
    }
}

const SENTINEL_PORT: u16 = 26379;
const CLUSTER_PORT: u16 = 6379;
const ONLY_NODE: &str = "a Sentinel or Cluster URL must be the only node: its hosts are separated \
                         by commas, \
     as in redis+sentinel://host1,host2/NAME";

/// Reads a list of URLs, separated by commas or blanks. Errors do not repeat the text: it may
/// contain a password.
pub fn parse(text: &str) -> Result<NodeUrls, String> {
    let mut pieces = text
        .split(|c: char| c == ',' || c.is_whitespace())
        .filter(|piece| !piece.is_empty());
    let Some(first) = pieces.next() else {
        return Err("no nodes: add --node redis://host:port, or set REDLOCK_NODES".to_owned());
    };
    let rest: Vec<&str> = pieces.collect();
    let Some((scheme, kind, start)) = special(first) else {
        if rest.iter().any(|piece| special(piece).is_some()) {
            return Err(ONLY_NODE.to_owned());
        }
        let all = std::iter::once(first).chain(rest).map(with_scheme);
        return Ok(NodeUrls::Masters(all.collect()));
    };
    if rest.iter().any(|piece| piece.contains("://")) {
        return Err(ONLY_NODE.to_owned());
    }
    let (user, start) = match start.rsplit_once('@') {
        Some((user, start)) => (format!("{user}@"), start),
        None => (String::new(), start),
    };
    let login = Login {
        scheme: scheme.to_owned(),
        user,
    };
    let mut hosts: Vec<&str> = std::iter::once(start).chain(rest).collect();
    let mut path = "";
    if let Some(last) = hosts.last_mut()
        && let Some((host, after)) = last.split_once('/')
    {
        (*last, path) = (host, after);
    }
    if hosts
        .iter()
        .any(|host| host.is_empty() || host.contains('/'))
    {
        return Err("a Sentinel or Cluster URL names its hosts first, as in \
                    redis+sentinel://host1,host2/NAME"
            .to_owned());
    }
    match kind {
        "sentinel" => sentinel(login, &hosts, path),
        _ => cluster(login, &hosts, path),
    }
}

/// Scheme, kind and rest of a URL such as `rediss+sentinel://…`.
fn special(url: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let (scheme, kind) = scheme.split_once('+')?;
    let known = matches!(scheme, "redis" | "rediss") && matches!(kind, "sentinel" | "cluster");
    known.then_some((scheme, kind, rest))
}

fn sentinel(login: Login, hosts: &[&str], path: &str) -> Result<NodeUrls, String> {
    let (name, database) = path.split_once('/').unwrap_or((path, ""));
    if name.is_empty() {
        return Err(
            "a Sentinel URL ends with the name of the master, as in redis+sentinel://host/NAME"
                .to_owned(),
        );
    }
    let url = |host: &&str| {
        let host = with_port(host, SENTINEL_PORT);
        format!("{}://{}{host}/{database}", login.scheme, login.user)
    };
    let sentinels = hosts.iter().map(url).collect();
    Ok(NodeUrls::Sentinel {
        login,
        name: name.to_owned(),
        sentinels,
    })
}

fn cluster(login: Login, hosts: &[&str], path: &str) -> Result<NodeUrls, String> {
    if !matches!(path, "" | "0") {
        return Err("a cluster has no databases: remove the path of its URL".to_owned());
    }
    let url = |host: &&str| {
        let host = with_port(host, CLUSTER_PORT);
        format!("{}://{}{host}", login.scheme, login.user)
    };
    let seeds = hosts.iter().map(url).collect();
    Ok(NodeUrls::Cluster { login, seeds })
}

fn with_port(host: &str, usual: u16) -> String {
    let after_address = host.rsplit_once(']').map_or(host, |(_, after)| after);
    if after_address.contains(':') {
        return host.to_owned();
    }
    format!("{host}:{usual}")
}

/// `host:port` alone is accepted, too.
fn with_scheme(url: &str) -> String {
    if url.contains("://") {
        return url.to_owned();
    }
    format!("redis://{url}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masters(urls: &[&str]) -> Result<NodeUrls, String> {
        let urls = urls.iter().map(|url| (*url).to_owned()).collect();
        Ok(NodeUrls::Masters(urls))
    }

    #[test]
    fn masters_are_separated_by_commas_or_blanks() {
        assert_eq!(
            parse("a:1, b\tredis://c"),
            masters(&["redis://a:1", "redis://b", "redis://c"])
        );
        assert_eq!(parse("\r\n ,,unix:///x\u{a0}"), masters(&["unix:///x"]));
        assert!(parse(" ,\n").is_err());
    }

    #[test]
    fn a_sentinel_url_names_sentinels_and_master() {
        let urls = |login: (&str, &str), sentinels: &[&str]| {
            Ok(NodeUrls::Sentinel {
                login: Login {
                    scheme: login.0.to_owned(),
                    user: login.1.to_owned(),
                },
                name: "mymaster".to_owned(),
                sentinels: sentinels.iter().map(|url| (*url).to_owned()).collect(),
            })
        };
        assert_eq!(
            parse("redis+sentinel://a,b:1,[::1]/mymaster"),
            urls(
                ("redis", ""),
                &["redis://a:26379/", "redis://b:1/", "redis://[::1]:26379/"]
            )
        );
        assert_eq!(
            parse("rediss+sentinel://me:s%2Ct@a:2/mymaster/3"),
            urls(("rediss", "me:s%2Ct@"), &["rediss://me:s%2Ct@a:2/3"])
        );
        for wrong in [
            "redis+sentinel://a",
            "redis+sentinel://a/",
            "redis+sentinel:///m",
            "redis+sentinel://a/m,b",
        ] {
            assert!(parse(wrong).is_err(), "{wrong} was accepted");
        }
    }

    #[test]
    fn a_cluster_url_names_some_of_its_nodes() {
        let Ok(NodeUrls::Cluster { login, seeds }) = parse("rediss+cluster://u:p@a,b:1") else {
            panic!("no cluster")
        };
        assert_eq!(seeds, ["rediss://u:p@a:6379", "rediss://u:p@b:1"]);
        assert_eq!(login.url("::1", 7), "rediss://u:p@[::1]:7");
        assert!(parse("redis+cluster://a/1").is_err());
    }

    #[test]
    fn a_sentinel_or_cluster_is_the_only_node() {
        for wrong in [
            "redis+cluster://a,redis://b",
            "redis://a,redis+sentinel://b/m",
            "redis+sentinel://a/m redis+sentinel://b/m",
        ] {
            assert_eq!(parse(wrong), Err(ONLY_NODE.to_owned()), "{wrong}");
        }
    }
}
