//! Puts answers on the wire: one line each, in the form of the request's era.

use bytes::Bytes;
use serde_json::{Value, json};

use super::request::Rejection;
use crate::executor::calls::Outcome;
use crate::executor::trace::Trace;
use crate::lines::Outbox;
use crate::tools::error::ToolError;
use crate::tools::json::{ObjectWriter, RawJson, RawObject};
use crate::tools::service::ToolOutput;

/// What every result of the self-contained era says about the server.
const SERVER_INFO: &str = concat!(r#"{"name":"toolcrib","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);
const SERVER_INFO_KEY: &str = "io.modelcontextprotocol/serverInfo";
const RUN_KEY: &str = "toolcrib/run";
const MODERN_TAIL: &str = concat!(
    r#","ttlMs":0,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"toolcrib","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}}}}"#
);

fn head(id: &RawJson) -> Vec<u8> {
    let mut head = Vec::with_capacity(48 + id.len());
    head.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    head.extend_from_slice(id.as_bytes());
    head
}

/// Answers with a result object.
pub fn result(outbox: &Outbox, id: &RawJson, result: &RawJson, is_modern: bool) {
    traced(outbox, id, result, None, is_modern);
}

/// Answers with a result object that tells in its `_meta` how the call went.
fn traced(outbox: &Outbox, id: &RawJson, result: &RawJson, trace: Option<&Trace>, is_modern: bool) {
    let trace = trace.map(Trace::json);
    let mut head = head(id);
    head.extend_from_slice(br#","result":"#);
    let tail = Bytes::from_static(b"}");
    match (is_modern, trace) {
        (true, trace) => {
            outbox.push(&[&Bytes::from(head), modern(result, trace.as_ref()).bytes(), &tail]);
        }
        (false, None) => outbox.push(&[&Bytes::from(head), result.bytes(), &tail]),
        (false, Some(trace)) => {
            let [before, added, after] = with_trace(result, &trace);
            outbox.push(&[&Bytes::from(head), &before, &added, &after, &tail]);
        }
    }
}

/// A result in three pieces, the middle one being what is added: the others are the upstream's own bytes.
fn with_trace(result: &RawJson, trace: &RawJson) -> [Bytes; 3] {
    let bytes = result.bytes();
    let cut = |at: usize, added: String| [bytes.slice(..at), added.into(), bytes.slice(at..)];
    let member = format!(r#""{RUN_KEY}":{}"#, trace.as_str());
    let end = bytes.trim_ascii_end().len().saturating_sub(1);
    let comma = if bytes[..end].trim_ascii_end().ends_with(b"{") { "" } else { "," };
    let appended = || cut(end, format!(r#"{comma}"_meta":{{{member}}}"#));
    // Most results have no metadata, and are not worth a parse to see that.
    if memchr::memmem::find(bytes, br#""_meta""#).is_none() {
        return appended();
    }
    let object = RawObject::parse(bytes).unwrap_or_default();
    let Some(meta) = object.get("_meta") else { return appended() };
    let Ok(members) = RawObject::parse(meta.get().as_bytes()) else {
        // Metadata that is no object is the upstream's business.
        return cut(end, String::new());
    };
    if members.get(RUN_KEY).is_none() {
        let start = meta.get().as_ptr() as usize - bytes.as_ptr() as usize;
        let comma = if members.members.is_empty() { "" } else { "," };
        return cut(start + meta.get().len() - 1, format!("{comma}{member}"));
    }
    // A gateway behind this one has told of its own run: ours is the one that the client started.
    let mut out = ObjectWriter::with_capacity(result.len() + member.len());
    for (key, value) in &object.members {
        match key.as_ref() {
            "_meta" => out.raw("_meta", &merged(&members, &[(RUN_KEY, trace.as_bytes())])),
            key => out.raw(key, value.get().as_bytes()),
        };
    }
    [out.finish().into(), Bytes::new(), Bytes::new()]
}

/// Metadata with further members, which replace those of the same name.
fn merged(meta: &RawObject<'_>, added: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = ObjectWriter::default();
    for (key, value) in meta.members.iter().filter(|(key, _)| !added.iter().any(|(added, _)| key == added)) {
        out.raw(key, value.get().as_bytes());
    }
    for (key, value) in added {
        out.raw(key, value);
    }
    out.finish()
}

/// The result with the members that the self-contained era requires.
fn modern(result: &RawJson, trace: Option<&RawJson>) -> RawJson {
    let object = RawObject::parse(result.as_bytes()).unwrap_or_default();
    let mut out = ObjectWriter::with_capacity(result.len() + 160);
    if object.get("resultType").is_none() {
        out.string("resultType", "complete");
    }
    for (key, value) in object.members.iter().filter(|(key, _)| key != "_meta") {
        out.raw(key, value.get().as_bytes());
    }
    let old =
        object.get("_meta").and_then(|old| RawObject::parse(old.get().as_bytes()).ok()).unwrap_or_default();
    let mut added: Vec<(&str, &[u8])> = vec![(SERVER_INFO_KEY, SERVER_INFO.as_bytes())];
    added.extend(trace.map(|trace| (RUN_KEY, trace.as_bytes())));
    out.raw("_meta", &merged(&old, &added));
    out.json()
}

/// Answers `tools/list` with an array that is serialized already.
pub fn tools(outbox: &Outbox, id: &RawJson, tools: &Bytes, is_modern: bool) {
    let mut head = head(id);
    head.extend_from_slice(match is_modern {
        true => br#","result":{"resultType":"complete","tools":"#.as_slice(),
        false => br#","result":{"tools":"#,
    });
    let tail = if is_modern { MODERN_TAIL } else { "}}" };
    outbox.push(&[&Bytes::from(head), tools, &Bytes::from_static(tail.as_bytes())]);
}

/// Answers with a JSON-RPC error.
pub fn rejection(outbox: &Outbox, rejection: &Rejection) {
    let mut error = json!({ "code": rejection.code, "message": rejection.message });
    if let Some(data) = &rejection.data {
        error["data"] = Value::clone(data);
    }
    error_object(outbox, &rejection.id, &RawJson::from_value(&error));
}

fn error_object(outbox: &Outbox, id: &RawJson, error: &RawJson) {
    let mut head = head(id);
    head.extend_from_slice(br#","error":"#);
    outbox.push(&[&Bytes::from(head), error.bytes(), &Bytes::from_static(b"}")]);
}

/// Answers a call, whatever became of it. A cancelled call is not answered.
pub fn outcome(outbox: &Outbox, id: &RawJson, outcome: Outcome, is_modern: bool) {
    let trace = outcome.trace.as_ref();
    match outcome.result {
        Ok(ToolOutput::Result(output)) => traced(outbox, id, &output, trace, is_modern),
        Ok(ToolOutput::RpcError(error)) => error_object(outbox, id, &well_formed(&error)),
        Err(ToolError::Cancelled { .. }) => {}
        Err(error @ ToolError::NotFound { .. }) => rejection(
            outbox,
            &Rejection {
                id: id.clone(),
                code: -32602,
                message: error.to_string(),
                data: Some(Box::new(error.facts())),
            },
        ),
        Err(error) => traced(outbox, id, &error_result(&error), trace, is_modern),
    }
}

/// A failed call as a result that a model can read and act upon.
fn error_result(error: &ToolError) -> RawJson {
    let mut text = error.to_string();
    if let ToolError::Validation { schema: Some(schema), .. } = error {
        text.push_str("\nThe parameters are: ");
        text.push_str(schema.as_str());
    }
    RawJson::from_value(&json!({
        "content": [{ "type": "text", "text": text }],
        "isError": true,
        "_meta": { "toolcrib/error": error.facts() },
    }))
}

/// An upstream's error object as it is, or in the form that clients can read.
fn well_formed(error: &RawJson) -> RawJson {
    let object = RawObject::parse(error.as_bytes()).unwrap_or_default();
    let code = object.get("code").and_then(|code| code.get().parse::<i32>().ok());
    if code.is_some() && object.text("message").is_some() {
        return error.clone();
    }
    let message =
        object.text("message").unwrap_or_else(|| "the upstream server reported an error".to_owned());
    let data: Value = error.to_value().unwrap_or_default();
    RawJson::from_value(&json!({ "code": code.unwrap_or(-32603), "message": message, "data": data }))
}

/// Sends a notification; `params` is a whole JSON object.
pub fn notification(outbox: &Outbox, method: &str, params: &[u8]) {
    outbox.write(|out| {
        out.extend_from_slice(br#"{"jsonrpc":"2.0","method":""#);
        out.extend_from_slice(method.as_bytes());
        out.extend_from_slice(br#"","params":"#);
        out.extend_from_slice(params);
        out.push(b'}');
    });
}

/// Sends a request of ours; `params` is a whole JSON object.
pub fn request(outbox: &Outbox, id: &str, method: &str, params: &RawJson) {
    let mut message = ObjectWriter::with_capacity(params.len() + 96);
    message.string("jsonrpc", "2.0").string("id", id).string("method", method);
    message.raw("params", params.as_bytes());
    let message = message.finish();
    outbox.write(|out| out.extend_from_slice(&message));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modern_results_carry_type_and_server_and_keep_the_rest() {
        let plain = RawJson::parse(r#"{"content":[],"_meta":{"a/b":1.0}}"#).unwrap();
        let expected = format!(
            r#"{{"resultType":"complete","content":[],"_meta":{{"a/b":1.0,"{SERVER_INFO_KEY}":{SERVER_INFO}}}}}"#
        );
        assert_eq!(modern(&plain, None).as_str(), expected);
    }

    #[test]
    fn a_trace_is_added_and_everything_else_keeps_its_bytes() {
        let trace = RawJson::parse(r#"{"t":1}"#).unwrap();
        let check = |text: &str, expected: &str| {
            let parts = with_trace(&RawJson::parse(text.to_owned()).unwrap(), &trace);
            assert_eq!(String::from_utf8(parts.concat()).unwrap(), expected, "{text}");
        };
        check("{}", r#"{"_meta":{"toolcrib/run":{"t":1}}}"#);
        check(
            r#"{"content":[],"b":1.0,"a":2}"#,
            r#"{"content":[],"b":1.0,"a":2,"_meta":{"toolcrib/run":{"t":1}}}"#,
        );
        check(
            r#"{"_meta":{"b":1.0,"a":2},"content":[]}"#,
            r#"{"_meta":{"b":1.0,"a":2,"toolcrib/run":{"t":1}},"content":[]}"#,
        );
        check(r#"{"_meta":{ },"x":1}"#, r#"{"_meta":{ "toolcrib/run":{"t":1}},"x":1}"#);
        check(
            r#"{"content":[{"_meta":{}}]}"#,
            r#"{"content":[{"_meta":{}}],"_meta":{"toolcrib/run":{"t":1}}}"#,
        );
        check(
            r#"{"_meta":{"toolcrib/run":{"t":0},"x":1},"y":1.0}"#,
            r#"{"_meta":{"x":1,"toolcrib/run":{"t":1}},"y":1.0}"#,
        );
        check(r#"{"_meta":7}"#, r#"{"_meta":7}"#);
    }

    #[test]
    fn an_upstreams_error_stays_as_it_is_unless_clients_could_not_read_it() {
        let check = |text: &str, expected: &str| {
            assert_eq!(well_formed(&RawJson::parse(text.to_owned()).unwrap()).as_str(), expected);
        };
        let good = r#"{"code":-32050,"message":"m","data":{"z":1,"a":2.0},"extra":1}"#;
        check(good, good);
        check(
            r#""text""#,
            r#"{"code":-32603,"message":"the upstream server reported an error","data":"text"}"#,
        );
        check(r#"{"message":"m"}"#, r#"{"code":-32603,"message":"m","data":{"message":"m"}}"#);
    }
}
