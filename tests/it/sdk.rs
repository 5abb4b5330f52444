//! A client of the official SDK against the binary. Those of other languages are in `tests/e2e` (`sdk_python.py`,
//! `sdk_typescript.mjs`) and run in `tests/run`.

use std::process::Stdio;
use std::sync::Arc;

use rmcp::model::{CallToolRequest, CallToolRequestParams, ClientRequest, PingRequest, ServerResult};
use rmcp::service::{NotificationContext, PeerRequestOptions, RoleClient};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{ClientHandler, ServiceExt};
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::support::{BARE, DEADLINE, M, World, root, until};

/// Hears that the list has changed.
#[derive(Clone, Default)]
struct Listener(Arc<Notify>);

impl ClientHandler for Listener {
    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.0.notify_one();
    }
}

fn start(world: &World) -> Child {
    let mut command = Command::from(world.command(&["serve"]));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    command.spawn().expect("the binary starts")
}

fn params(tool: &'static str, arguments: Value) -> CallToolRequestParams {
    let mut params = CallToolRequestParams::new(tool);
    params.arguments = arguments.as_object().cloned();
    params
}

#[tokio::test]
async fn c10_a_client_of_the_official_sdk_does_all_it_can() {
    let world = World::new(&format!("{BARE}[tools]\ncore = []\n{M}"));
    let mut child = start(&world);
    let transport = AsyncRwTransport::new_client(
        child.stdout.take().expect("a pipe"),
        child.stdin.take().expect("a pipe"),
    );
    let listener = Listener::default();
    let story = async {
        let client = listener.clone().serve(transport).await.expect("the handshake succeeds");
        let info =
            serde_json::to_value(client.peer_info().expect("it introduced itself")).expect("it is JSON");
        assert!(info.to_string().contains("\"toolcrib\""), "{info}");
        let tools = client.list_all_tools().await.expect("the list can be read");
        assert_eq!(tools.len(), 15, "those of the server and `read_result`");

        let result =
            client.call_tool(params("m_echo", json!({ "a": [1, 2] }))).await.expect("it is answered");
        let result = serde_json::to_value(&result).expect("it is JSON");
        assert_eq!(result["structuredContent"], json!({ "a": [1, 2] }));
        let refused =
            client.call_tool(params("m_sleep", json!({ "ms": "x" }))).await.expect("it is answered");
        let refused = serde_json::to_value(&refused).expect("it is JSON");
        assert_eq!(refused["_meta"]["toolcrib/error"]["kind"], "validation");
        client
            .call_tool(params("nothing", json!({})))
            .await
            .expect_err("an unknown tool is a protocol error");

        let ping = client.send_request(ClientRequest::PingRequest(PingRequest::default())).await;
        assert!(matches!(ping.expect("it is answered"), ServerResult::EmptyResult(_)));

        client.call_tool(params("m_add_tool", json!({ "name": "fresh" }))).await.expect("it is answered");
        listener.0.notified().await;
        let tools = client.list_all_tools().await.expect("the list can be read");
        assert!(tools.iter().any(|tool| tool.name == "m_fresh"));

        let call = ClientRequest::CallToolRequest(CallToolRequest::new(params("m_hang", json!({}))));
        let call = client
            .send_cancellable_request(call, PeerRequestOptions::no_options())
            .await
            .expect("it is sent");
        // Looks at a file: the client's own tasks go on meanwhile.
        while world.events("start", "hang").is_empty() {
            tokio::task::yield_now().await;
        }
        call.cancel(Some("changed my mind".to_owned())).await.expect("it is sent");
        while world.events("cancel", "hang").is_empty() {
            tokio::task::yield_now().await;
        }
        client.call_tool(params("m_ro", json!({}))).await.expect("the session goes on");
        client.cancel().await.expect("it closes");
    };
    timeout(DEADLINE, story).await.expect("no hang");
    let status = timeout(DEADLINE, child.wait()).await.expect("it ends").expect("it can be waited for");
    assert!(status.success(), "{status}");
    let pids = world.pids();
    until("the server is gone", || pids.iter().all(|pid| !crate::support::is_alive(*pid)));
}

/// What this row asks for in other languages is part of the one test command.
#[test]
fn c10_clients_of_other_languages_are_part_of_the_test_command() {
    let run = std::fs::read_to_string(root().join("tests/run")).expect("the test command is there");
    for client in ["sdk_python.py", "sdk_typescript.mjs"] {
        assert!(run.contains(client) && root().join("tests/e2e").join(client).is_file(), "{client}");
    }
}
