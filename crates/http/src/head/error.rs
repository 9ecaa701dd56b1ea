//! The faults for which a head is refused.

/// Why a head is refused before anything is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// An HTTP/1.1 request needs exactly one `Host` field (RFC 9112, 3.2).
    #[error("an HTTP/1.1 request needs exactly one Host field")]
    Host,
    /// Not `host[:port]`, or with user information (RFC 9110, 4.2.4).
    #[error("the authority is not a host with an optional port")]
    Authority,
    /// `:authority` and `Host` differ (RFC 9113, 8.3.1).
    #[error(":authority and Host differ")]
    TwoAuthorities,
    /// The request target is not allowed for the method (RFC 9112, 3.2).
    #[error("the request target does not fit the method")]
    Target,
    /// TRACE would reveal fields that the mesh adds for the callee. CONNECT is for outbound tunnels
    /// only.
    #[error("this method is not served here")]
    Method,
    /// Servers disagree on how to read this path, so no route or rule for it could be trusted.
    #[error("{0}")]
    Path(&'static str),
    /// A field name is not a token (RFC 9110, 5.6.2). HTTP/1.1's parser refuses it; the HTTP/2
    /// library accepts a quotation mark.
    #[error("a field name is not a token")]
    FieldName,
    /// A CONNECT has content (RFC 9110, 9.3.6).
    #[error("a CONNECT has no content")]
    ConnectContent,
    /// The `Content-Length` is 0, and there is content (RFC 9113, 8.1.1).
    #[error("Content-Length says that there is no content")]
    NotEmpty,
    /// The `Content-Length` fields differ (RFC 9110, 8.6).
    #[error("Content-Length fields differ")]
    Lengths,
    /// More fields than the mesh allows (RFC 6585, 5).
    #[error("too many header fields")]
    TooManyHeaders,
    /// No method is that long, so it is not implemented (RFC 9110, 9.1).
    #[error("the method is too long")]
    LongMethod,
    /// Only `chunked` is implemented (RFC 9112, 6.1).
    #[error("the transfer coding is not implemented")]
    TransferCoding,
    /// The expectation is not `100-continue` (RFC 9110, 10.1.1).
    #[error("the expectation cannot be met")]
    Expectation,
    /// The first line is no request line (RFC 9112, 3).
    #[error("the request line is not: method, one space, target, one space, HTTP/1.1")]
    RequestLine,
    /// The version is neither 1.0 nor 1.1 (RFC 9112, 2.3).
    #[error("this HTTP version is not served on this connection")]
    Version,
    /// The target has bytes that are no characters of a URI (RFC 3986, 2).
    #[error("the request target has a character that must be percent-encoded, or a fragment")]
    TargetCharacter,
    /// The target is longer than the parser takes (RFC 9110, 15.5.15).
    #[error("the request target is too long")]
    LongTarget,
    /// A value has a control character, or a line is folded (RFC 9110, 5.5; RFC 9112, 5.2).
    #[error("a field value has a control character, or its line is folded")]
    FieldValue,
    /// A line ends neither with CR LF nor with LF (RFC 9112, 2.2).
    #[error("a line of the head does not end with CR LF")]
    LineEnd,
    /// The head is larger than `limits.headBytes` (RFC 6585, 5).
    #[error("the head is larger than limits.headBytes")]
    LargeHead,
    /// The `Content-Length` is no number, or too large (RFC 9110, 8.6).
    #[error("the Content-Length is not a length, or its fields differ")]
    Length,
    /// The last transfer coding is not `chunked`, or the version is 1.0 (RFC 9112, 6.3).
    #[error("the last Transfer-Encoding is not chunked, or the version is HTTP/1.0")]
    Framing,
    /// TLS where plain HTTP is expected.
    #[error("TLS on a port for plain HTTP: use http://")]
    Tls,
    /// Plain HTTP where TLS is expected.
    #[error("plain HTTP on a port for TLS: use https://")]
    NoTls,
    /// An HTTP/2 head that its library refuses (RFC 9113, 8.1.1).
    #[error("the HTTP/2 head is malformed (RFC 9113, 8.1.1)")]
    Http2Head,
    /// A client sends more than the HTTP/2 library bears.
    #[error("a head is many times larger than limits.headBytes, or there are too many resets or small frames")]
    Http2Excess,
    /// A client breaks a rule of HTTP/2 that concerns its whole connection (RFC 9113, 5.4.1).
    #[error("the client breaks a rule of HTTP/2 that concerns the whole connection (RFC 9113, 5.4.1)")]
    Http2Connection,
    /// A gateway on another node must identify its client, because rules may depend on the client.
    #[error("the gateway does not say who its client is")]
    Client,
    /// A caller's sidecar names decisions of a route in a way that this release does not know, so
    /// they could not be carried out.
    #[error("the caller's sidecar says what a route has decided in a form that this release does not know")]
    RouteTerms,
}
