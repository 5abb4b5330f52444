//! Puts answers on the wire: one line each, in the form of the request's era.

use bytes::Bytes;
use serde_json::{Value, json};

use super::request::Rejection;
use crate::lines::Outbox;
use crate::tools::error::ToolError;
use crate::tools::json::{ObjectWriter, RawJson, RawObject};
use crate::tools::service::ToolOutput;

/// What every result of the self-contained era says about the server.
const SERVER_INFO: &str = concat!(r#"{"name":"toolcrib","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);
const SERVER_INFO_KEY: &str = "io.modelcontextprotocol/serverInfo";
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
    let completed = if is_modern { Some(modern(result)) } else { None };
    let result = completed.as_ref().unwrap_or(result);
    let mut head = head(id);
    head.extend_from_slice(br#","result":"#);
    outbox.push(&[&Bytes::from(head), result.bytes(), &Bytes::from_static(b"}")]);
}

/// The result with the members that the self-contained era requires.
fn modern(result: &RawJson) -> RawJson {
    let object = RawObject::parse(result.as_bytes()).unwrap_or_default();
    let mut out = ObjectWriter::with_capacity(result.len() + 160);
    if object.get("resultType").is_none() {
        out.string("resultType", "complete");
    }
    for (key, value) in object.members.iter().filter(|(key, _)| key != "_meta") {
        out.raw(key, value.get().as_bytes());
    }
    let mut meta = ObjectWriter::default();
    if let Some(old) = object.get("_meta").and_then(|old| RawObject::parse(old.get().as_bytes()).ok()) {
        for (key, value) in old.members.iter().filter(|(key, _)| key != SERVER_INFO_KEY) {
            meta.raw(key, value.get().as_bytes());
        }
    }
    meta.raw(SERVER_INFO_KEY, SERVER_INFO.as_bytes());
    out.raw("_meta", &meta.finish());
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
pub fn outcome(outbox: &Outbox, id: &RawJson, outcome: Result<ToolOutput, ToolError>, is_modern: bool) {
    match outcome {
        Ok(ToolOutput::Result(output)) => result(outbox, id, &output, is_modern),
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
        Err(error) => result(outbox, id, &error_result(&error), is_modern),
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
        assert_eq!(modern(&plain).as_str(), expected);
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
