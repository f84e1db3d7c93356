//! Who is let in, and the headers of every reply.

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::{AUTHORIZATION, COOKIE, HOST, HeaderName, HeaderValue, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use subtle::ConstantTimeEq;

use crate::exit::Failure;

/// The shortest token that is accepted, in bytes: shorter ones can be guessed.
const SHORTEST_TOKEN: usize = 16;
const LONGEST_TOKEN: usize = 1_024;
const SCHEME: &[u8] = b"Bearer ";
const COOKIE_NAME: &str = "redlock";
/// What everybody may read: it contains no data.
const OPEN_PATHS: [&str; 6] = [
    "/",
    "/app.js",
    "/app.css",
    "/icon.svg",
    "/login",
    "/healthz",
];
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                      connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// The headers of every reply.
const HEADERS: [(HeaderName, &str); 7] = [
    (HeaderName::from_static("content-security-policy"), POLICY),
    (HeaderName::from_static("x-content-type-options"), "nosniff"),
    (HeaderName::from_static("x-frame-options"), "DENY"),
    (HeaderName::from_static("referrer-policy"), "no-referrer"),
    (HeaderName::from_static("cache-control"), "no-store"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// The secret that lets clients in.
pub struct Token {
    token: Vec<u8>,
    /// What a browser shows after it has logged in. It is valid until the program ends.
    session: String,
    /// Whether the cookie may only be sent over TLS.
    secure: bool,
}

impl Token {
    /// Reads the token from the first line of a file. Errors do not repeat it.
    pub fn read(file: &Path, secure: bool) -> Result<Self, Failure> {
        let shown = file.display();
        let text = std::fs::read(file).map_err(|error| {
            Failure::usage(format!("the token file {shown} cannot be read: {error}"))
        })?;
        let token = text.trim_ascii();
        let usable = token.len() <= LONGEST_TOKEN && token.iter().all(u8::is_ascii_graphic);
        if token.len() < SHORTEST_TOKEN || !usable {
            return Err(Failure::usage(format!(
                "the token file {shown} must contain {SHORTEST_TOKEN} to {LONGEST_TOKEN} letters, \
                 digits and signs on one line: try openssl rand -hex 32"
            )));
        }
        let mut random = [0; 32];
        getrandom::fill(&mut random)
            .map_err(|error| Failure::usage(format!("no random numbers: {error}")))?;
        let session = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self {
            token: token.to_vec(),
            session,
            secure,
        })
    }

    /// Whether this is the token, in a time that does not reveal how much of it is correct.
    fn is(&self, shown: &[u8]) -> bool {
        self.token.ct_eq(shown).into()
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        let bearer = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let bearer = bearer.and_then(|value| {
            // The name of the scheme may be written in any case.
            let (scheme, shown) = value.split_at_checked(SCHEME.len())?;
            scheme.eq_ignore_ascii_case(SCHEME).then_some(shown)
        });
        let cookies = headers.get_all(COOKIE).iter();
        let cookies = cookies.filter_map(|value| value.to_str().ok());
        let session = cookies
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .find(|(name, _)| *name == COOKIE_NAME);
        let known =
            |(_, value): (&str, &str)| bool::from(self.session.as_bytes().ct_eq(value.as_bytes()));
        bearer.is_some_and(|shown| self.is(shown)) || session.is_some_and(known)
    }

    fn cookie(&self) -> String {
        let secure = if self.secure { "; Secure" } else { "" };
        let session = &self.session;
        format!("{COOKIE_NAME}={session}; Path=/; HttpOnly; SameSite=Strict{secure}")
    }
}

/// Puts the gate before all routes. Without a token, only requests that name this host are let
/// in: a page of another site whose name points to this host (DNS rebinding) is not.
pub fn guarded(routes: Router, token: Option<Token>) -> Router {
    let routes = match token {
        None => routes.layer(from_fn(own_host)),
        Some(token) => {
            let token = Arc::new(token);
            let limit = DefaultBodyLimit::max(2 * LONGEST_TOKEN);
            let login = post(login).layer(limit).with_state(Arc::clone(&token));
            let routes = routes.route("/login", login);
            routes.layer(from_fn_with_state(token, with_token))
        }
    };
    routes.layer(from_fn(with_headers))
}

async fn with_headers(request: Request, next: Next) -> Response {
    let mut reply = next.run(request).await;
    for (name, value) in HEADERS {
        reply
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    reply
}

async fn own_host(request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST);
    let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
    if is_own(host) {
        return next.run(request).await;
    }
    let text = "this page is for this host: open it as http://127.0.0.1 or http://localhost, or \
                start redlock with --token-file\n";
    (StatusCode::FORBIDDEN, text).into_response()
}

/// Whether a Host header names this host.
fn is_own(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let name = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'))
        .unwrap_or(name);
    let address = name.parse::<std::net::IpAddr>();
    address.is_ok_and(|address| address.to_canonical().is_loopback())
}

async fn with_token(State(token): State<Arc<Token>>, request: Request, next: Next) -> Response {
    let open = OPEN_PATHS.contains(&request.uri().path());
    if open || token.admits(request.headers()) {
        return next.run(request).await;
    }
    let header = [("www-authenticate", "Bearer")];
    let text = "a token is required: Authorization: Bearer TOKEN\n";
    (StatusCode::UNAUTHORIZED, header, text).into_response()
}

/// Exchanges the token for a cookie, so that a browser need not keep the token.
async fn login(State(token): State<Arc<Token>>, body: Bytes) -> Response {
    if body.len() <= LONGEST_TOKEN && token.is(body.trim_ascii()) {
        let cookie = [(SET_COOKIE, token.cookie())];
        return (StatusCode::NO_CONTENT, cookie).into_response();
    }
    (StatusCode::UNAUTHORIZED, "wrong token\n").into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_host_are_its_own() {
        for own in [
            "127.0.0.1",
            "127.0.0.1:9937",
            "localhost:1",
            "LocalHost",
            "[::1]:80",
            "[::1]",
            "127.9.9.9",
        ] {
            assert!(is_own(own), "{own}");
        }
        for other in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:80",
            "10.0.0.7:9937",
            "[::2]",
            "localhost@evil.example",
        ] {
            assert!(!is_own(other), "{other}");
        }
    }

    #[test]
    fn a_cookie_or_a_bearer_token_is_let_in() {
        let folder = std::env::temp_dir().join(format!("redlock-token-{}", std::process::id()));
        std::fs::write(&folder, "0123456789abcdef\n").unwrap_or_default();
        let Ok(token) = Token::read(&folder, true) else {
            panic!("the token is not accepted")
        };
        let _ = std::fs::remove_file(&folder);
        let headers = |name: HeaderName, value: &str| {
            let value = HeaderValue::from_str(value).unwrap_or(HeaderValue::from_static(""));
            HeaderMap::from_iter([(name, value)])
        };
        let session = format!("a=b; redlock={}", token.session);
        assert!(token.admits(&headers(AUTHORIZATION, "Bearer 0123456789abcdef")));
        assert!(token.admits(&headers(AUTHORIZATION, "bearer 0123456789abcdef")));
        assert!(!token.admits(&headers(AUTHORIZATION, "Bearer")));
        assert!(token.admits(&headers(COOKIE, &session)));
        assert!(!token.admits(&headers(AUTHORIZATION, "Bearer 0123456789abcdeg")));
        assert!(!token.admits(&headers(AUTHORIZATION, "0123456789abcdef")));
        assert!(!token.admits(&headers(COOKIE, "redlock=0123456789abcdef")));
        assert!(!token.admits(&HeaderMap::new()));
        assert!(
            token
                .cookie()
                .ends_with("HttpOnly; SameSite=Strict; Secure")
        );
    }
}
