//! `initialize` and `server/discover`, answered by the MCP SDK over a transport of our own.

use std::borrow::Cow;
use std::future::Future;
use std::io;

use rmcp::model::{Implementation, ProtocolVersion, ServerCapabilities, ServerConfig};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage, serve_server};
use rmcp::transport::Transport;
use rmcp::{RoleServer, ServerHandler};
use tokio::sync::mpsc;

use crate::lines::Outbox;

/// Messages of the SDK's part of the protocol on their way to it.
pub type Inlet = mpsc::UnboundedSender<RxJsonRpcMessage<RoleServer>>;

/// Feeds the SDK from a channel and writes what it says into the client's queue. The front end reads the pipe
/// itself, answers what is hot or must not be decoded, and hands over the rest.
struct Bridge {
    inlet: mpsc::UnboundedReceiver<RxJsonRpcMessage<RoleServer>>,
    outbox: Outbox,
}

impl Transport<RoleServer> for Bridge {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let text = serde_json::to_vec(&item).map_err(io::Error::other);
        let outbox = self.outbox.clone();
        async move {
            let text = text?;
            outbox.write(|out| out.extend_from_slice(&text));
            Ok(())
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        self.inlet.recv().await
    }

    async fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the SDK is told about this server.
struct Identity {
    instructions: String,
}

impl ServerHandler for Identity {
    fn get_info(&self) -> ServerConfig {
        let mut capabilities = ServerCapabilities::default();
        capabilities.tools.get_or_insert_default().list_changed = Some(true);
        let mut server = Implementation::new("toolcrib", env!("CARGO_PKG_VERSION"));
        server.title = Some("toolcrib".to_owned());
        ServerConfig::new(capabilities).with_server_info(server).with_instructions(&self.instructions)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS)
    }
}

/// Opens the SDK's side of a connection. The future serves it until the inlet is dropped.
pub fn open(outbox: Outbox, instructions: String) -> (Inlet, impl Future<Output = ()> + Send) {
    let (sender, inlet) = mpsc::unbounded_channel();
    let serve = async move {
        match serve_server(Identity { instructions }, Bridge { inlet, outbox }).await {
            Ok(service) => drop(service.waiting().await),
            // The client went away before it said who it is.
            Err(error) => tracing::debug!(%error, "the lifecycle ended"),
        }
    };
    (sender, serve)
}
