//! A connection: requests in bytes, answers by pages.
//!
//! A header must be there within [`PATIENCE`] and fit [`HEADER_BYTES_MAX`]. A connection ends after [`CONNECTION_TIME`] with the answer that is under
//! way, and [`LAST_TIME`] later whether or not that was read. Bodies of requests are not read. A client that is gone keeps its place until its
//! page is made. A target of `fuzz/` includes this file as it is.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

pub(super) const PATIENCE: Duration = Duration::from_secs(5);
const CONNECTION_TIME: Duration = Duration::from_secs(60);
/// Further time for the answer that is under way then.
const LAST_TIME: Duration = Duration::from_secs(70);
pub(super) const HEADER_BYTES_MAX: usize = 16 << 10;

/// Bytes of a connection, in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A request as pages see it.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) path: &'a str,
    /// The part behind `?`.
    pub(crate) query: &'a str,
    pub(crate) headers: &'a HeaderMap,
}

impl Asked<'_> {
    /// A field of the query, as it is written there.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.query.split('&').filter_map(|field| field.split_once('='));
        fields.find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) status: StatusCode,
    pub(crate) content_type: &'static str,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Bytes,
}

impl Page {
    pub(crate) fn new(content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self {
            status: StatusCode::OK,
            content_type,
            headers: Vec::new(),
            body: body.into(),
        }
    }

    /// A line of text that says what is wrong.
    pub(crate) fn refused(status: StatusCode, why: &str) -> Self {
        Self {
            status,
            ..Self::new("text/plain; charset=utf-8", format!("{why}\n"))
        }
    }
}

/// Pages by path. Nothing is changed by a request.
pub(crate) trait Pages: Send + Sync + 'static {
    /// The answer to GET, if it costs little or the asker may see no more; it is the connection's last. Must not block.
    fn at_once(&self, asked: &Asked<'_>) -> Option<Page>;

    /// The answer where [`Pages::at_once`] gives none. Its asker has a right to it, and keeps the connection's place. May take long.
    fn get(&self, asked: &Asked<'_>) -> Page;
}

/// Answers requests until the other end has closed, was too slow, or its time is over. `keeps_place` tells whether the last request was one for
/// [`Pages::get`].
pub(crate) async fn converse(stream: Box<dyn Stream>, pages: Arc<dyn Pages>, keeps_place: Arc<AtomicBool>) {
    let service = service_fn(move |request| {
        let at_once = at_once(&request, &*pages);
        keeps_place.store(at_once.is_none(), Ordering::Relaxed);
        let pages = Arc::clone(&pages);
        async move {
            Ok::<_, Infallible>(match at_once {
                Some(page) => {
                    let mut last = response(page);
                    // Requests that have come already would take turns from others.
                    last.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                    last
                }
                None => response(later(request, pages).await),
            })
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            // A client may close its half and still read, as `nc -N` does.
            .half_close(true)
            .max_buf_size(HEADER_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service)
    );
    // Over or broken: nobody is left to be told.
    if timeout(CONNECTION_TIME, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(LAST_TIME, connection).await;
    }
}

fn at_once(request: &Request<Incoming>, pages: &dyn Pages) -> Option<Page> {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let why = "pages are only read here: GET";
        return Some(Page::refused(StatusCode::METHOD_NOT_ALLOWED, why));
    }
    pages.at_once(&asked(request))
}

async fn later(request: Request<Incoming>, pages: Arc<dyn Pages>) -> Page {
    let page = tokio::task::spawn_blocking(move || pages.get(&asked(&request)));
    let broken = |_| Page::refused(StatusCode::INTERNAL_SERVER_ERROR, "a bug broke this page: see the log");
    page.await.unwrap_or_else(broken)
}

fn asked(request: &Request<Incoming>) -> Asked<'_> {
    Asked {
        path: request.uri().path(),
        query: request.uri().query().unwrap_or_default(),
        headers: request.headers(),
    }
}

fn response(page: Page) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(page.body));
    *response.status_mut() = page.status;
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static(page.content_type));
    headers.insert("cache-control", HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.extend(page.headers);
    response
}
