//! Servers that speak TLS.

use tempfile::TempDir;

/// A certificate for this machine; it signs itself, so it is its own authority.
pub struct Certificate {
    folder: TempDir,
    /// The certificate as PEM.
    pub pem: String,
    /// Its private key as PEM.
    pub key: String,
}

impl Certificate {
    /// A new certificate, in files that live as long as this value.
    pub fn new() -> Certificate {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let own = rcgen::generate_simple_self_signed(names).expect("a certificate");
        let (pem, key) = (own.cert.pem(), own.signing_key.serialize_pem());
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, text) in [("cert.pem", &pem), ("key.pem", &key)] {
            std::fs::write(folder.path().join(name), text).expect("a file is written");
        }
        Certificate { folder, pem, key }
    }

    /// The path of one of its files, `cert.pem` or `key.pem`.
    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Lines of redis.conf for a server that also listens on `port` for TLS.
    pub fn config(&self, port: u16, auth_clients: &str) -> Vec<String> {
        vec![
            format!("tls-port {port}"),
            format!("tls-cert-file {}", self.path("cert.pem")),
            format!("tls-key-file {}", self.path("key.pem")),
            format!("tls-ca-cert-file {}", self.path("cert.pem")),
            format!("tls-auth-clients {auth_clients}"),
        ]
    }
}

impl Default for Certificate {
    fn default() -> Certificate {
        Certificate::new()
    }
}
