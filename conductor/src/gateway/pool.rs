//! The gateway's side of the cluster: members from the conductor's `Watch`, a `Route` with a fallback, channels to nodes.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvrail_proto::v1::conductor_client::ConductorClient;
use kvrail_proto::v1::decode_client::DecodeClient;
use kvrail_proto::v1::{self, route_reply};
use kvrail_proto::{MESSAGE_BYTES_MAX, convert::Malformed};
use metrics::{Counter, Gauge};
use parking_lot::Mutex;
use tonic::transport::{Channel, Endpoint};

use super::config::GatewayConfig;
use super::view::{Serving, View};
use crate::members::{Load, Node};
use crate::metrics::{Registry, name};
use crate::route::{Refusal, Request, Router};

/// Pauses between attempts to reach the conductor.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// How often it is said again that the conductor cannot be reached.
const TELL_AGAIN: Duration = Duration::from_secs(30);
/// After a failed `Route`, how long the next ones do not even try.
const ROUTE_PAUSE: Duration = Duration::from_millis(500);

/// Who serves a request.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub node_id: String,
    /// Which life of that node; `None` if the members do not name it (yet).
    pub generation: Option<u64>,
    pub address: String,
    pub prefill: Vec<v1::PrefillChoice>,
}

pub(super) struct Pool {
    conductor: Channel,
    config: GatewayConfig,
    started: Instant,
    view: Mutex<View>,
    fallback: Mutex<Router>,
    route_paused_until: Mutex<Option<Instant>>,
    channels: Mutex<HashMap<String, Channel>>,
    connected: AtomicBool,
    connected_gauge: Gauge,
    fallbacks: Counter,
}

fn endpoint(address: &str, config: &GatewayConfig) -> Result<Endpoint, tonic::transport::Error> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?
        .connect_timeout(config.connect_timeout)
        .http2_keep_alive_interval(config.keepalive)
        .keep_alive_timeout(config.keepalive)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true))
}

impl Pool {
    pub(super) fn new(config: GatewayConfig, registry: &Registry) -> Result<Self, tonic::transport::Error> {
        Ok(Self {
            conductor: endpoint(&config.conductor, &config)?.connect_lazy(),
            started: Instant::now(),
            view: Mutex::new(View::default()),
            fallback: Mutex::new(Router::new(config.route)),
            route_paused_until: Mutex::new(None),
            channels: Mutex::new(HashMap::new()),
            connected: AtomicBool::new(false),
            connected_gauge: registry.gauge(name::CONDUCTOR_CONNECTED, &[]),
            fallbacks: registry.counter(name::ROUTE_FALLBACKS, &[]),
            config,
        })
    }

    /// Whether the conductor's stream of members stands.
    pub(super) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Looks at the members.
    pub(super) fn with_view<T>(&self, look: impl FnOnce(&View) -> T) -> T {
        look(&self.view.lock())
    }

    /// The pool that serves this gateway's model.
    pub(super) fn serving(&self) -> Option<Serving> {
        self.view.lock().serving(&self.config.model, self.config.model_digest.as_deref())
    }

    /// Follows the members for ever.
    pub(super) async fn follow(&self) {
        let mut pause = RECONNECT.0;
        let mut told: Option<Instant> = None;
        loop {
            let since = Instant::now();
            let reason = self.watch().await;
            if self.connected.swap(false, Ordering::Relaxed) {
                self.connected_gauge.set(0.0);
                tracing::warn!(conductor = %self.config.conductor, %reason, "conductor lost; going on with the members last known");
                pause = RECONNECT.0;
                told = Some(Instant::now());
            } else if told.is_none_or(|at| at.elapsed() >= TELL_AGAIN) {
                tracing::warn!(conductor = %self.config.conductor, %reason, "cannot reach the conductor; trying again");
                told = Some(Instant::now());
            }
            if since.elapsed() > RECONNECT.1 {
                pause = RECONNECT.0;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RECONNECT.1);
        }
    }

    async fn watch(&self) -> tonic::Status {
        let mut client = ConductorClient::new(self.conductor.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let request = v1::WatchRequest { gateway_id: self.config.gateway_id.clone() };
        let mut stream = match client.watch(request).await {
            Ok(reply) => reply.into_inner(),
            Err(status) => return status,
        };
        self.view.lock().handle_stream(self.started.elapsed(), self.config.members_keep);
        loop {
            // Members that are kept because a conductor is new are dropped in time even if nothing else changes.
            let message = match tokio::time::timeout(self.config.members_keep, stream.message()).await {
                Err(_) => None,
                Ok(Ok(Some(members))) => Some(members),
                Ok(Ok(None)) => return tonic::Status::unavailable("the conductor ended the stream"),
                Ok(Err(status)) => return status,
            };
            let listed = match message {
                Some(members) => {
                    if !self.connected.swap(true, Ordering::Relaxed) {
                        self.connected_gauge.set(1.0);
                        tracing::info!(conductor = %self.config.conductor, "following the conductor");
                    }
                    *self.route_paused_until.lock() = None;
                    members
                        .members
                        .into_iter()
                        .filter_map(|m| match read_member(m) {
                            Ok(member) => Some(member),
                            Err(error) => {
                                tracing::warn!(%error, "a member is passed over");
                                None
                            }
                        })
                        .collect()
                }
                None => self.with_view(|view| {
                    view.members().iter().filter(|m| m.connected).map(|m| (m.node.clone(), m.load)).collect()
                }),
            };
            self.take_members(listed);
        }
    }

    fn take_members(&self, listed: Vec<(Node, Load)>) {
        let now = self.started.elapsed();
        let mut view = self.view.lock();
        let changes = view.handle_members(listed, now);
        let addresses: HashSet<&str> = view.members().iter().map(|m| m.node.grpc_address.as_str()).collect();
        self.channels.lock().retain(|address, _| addresses.contains(address.as_str()));
        let mut fallback = self.fallback.lock();
        for id in changes.reported {
            fallback.handle_load(id, now);
        }
        for id in changes.gone {
            fallback.handle_gone(id);
        }
    }

    /// A client of the decode node at `address`; channels are kept, and connect again by themselves.
    pub(super) fn decode(&self, address: &str) -> Result<DecodeClient<Channel>, tonic::transport::Error> {
        let mut channels = self.channels.lock();
        let channel = match channels.get(address) {
            Some(channel) => channel.clone(),
            None => {
                let channel = endpoint(address, &self.config)?.connect_lazy();
                channels.insert(address.to_owned(), channel.clone());
                channel
            }
        };
        drop(channels);
        Ok(DecodeClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    /// Who shall serve `request`: the conductor's word, or the members' last known state where it has none.
    pub(super) async fn route(&self, request: v1::RouteRequest) -> Result<Placed, v1::Failure> {
        let paused = self.route_paused_until.lock().is_some_and(|until| Instant::now() < until);
        if !paused {
            let mut client = ConductorClient::new(self.conductor.clone()).max_encoding_message_size(MESSAGE_BYTES_MAX);
            let asked = tokio::time::timeout(self.config.route_timeout, client.route(request.clone())).await;
            match asked.map(|answer| answer.map(|reply| reply.into_inner().reply)) {
                Ok(Ok(Some(route_reply::Reply::Choice(choice)))) => return Ok(self.placed(choice)),
                // A conductor that just started may not know yet whom this gateway still knows.
                Ok(Ok(Some(route_reply::Reply::Failure(failure))))
                    if failure.code == "no_nodes" && (!self.is_connected() || self.with_view(View::knows_more)) => {}
                Ok(Ok(Some(route_reply::Reply::Failure(failure)))) => return Err(failure),
                Ok(Ok(None)) => return Err(internal("the conductor's answer is empty")),
                Ok(Err(status)) if status.code() == tonic::Code::InvalidArgument => {
                    return Err(internal(status.message()));
                }
                Ok(Err(_)) | Err(_) => *self.route_paused_until.lock() = Some(Instant::now() + ROUTE_PAUSE),
            }
        }
        self.fallbacks.increment(1);
        tracing::debug!(request = %request.request_id, "the conductor does not answer; routing by the members last known");
        self.route_alone(&request)
    }

    fn placed(&self, choice: v1::RouteChoice) -> Placed {
        let prefill = choice.prefill.into_iter();
        Placed {
            generation: self.with_view(|view| view.generation(&choice.decode_node)),
            node_id: choice.decode_node,
            address: choice.decode_address,
            prefill: prefill.map(|p| v1::PrefillChoice { node_id: p.node_id, grpc_address: p.grpc_address }).collect(),
        }
    }

    /// The conductor's policy, run here, without its index.
    fn route_alone(&self, request: &v1::RouteRequest) -> Result<Placed, v1::Failure> {
        let view = self.view.lock();
        let members: Vec<_> = view.members().iter().collect();
        let wanted = Request {
            model: &request.model,
            namespace_id: request.namespace_id,
            prompt_tokens: request.prompt_tokens,
            max_tokens: request.max_tokens,
            exclude: &request.exclude,
            matches: &[],
        };
        let decision = self.fallback.lock().route(&wanted, &members, self.started.elapsed());
        let decision = decision.map_err(|refusal: Refusal| v1::Failure {
            code: refusal.code().into(),
            message: refusal.to_string(),
            retryable: refusal.retry_after().is_some(),
            retry_after_ms: refusal.retry_after().map_or(0, |d| d.as_millis() as u32),
        })?;
        let find = |id| members.iter().find(|m| m.id == id).map(|m| &m.node);
        let decode = find(decision.decode).ok_or_else(|| internal("the router chose a node that is not there"))?;
        let prefill = decision.prefill.iter().filter_map(|pick| find(pick.id));
        Ok(Placed {
            node_id: decode.node_id.clone(),
            generation: Some(decode.generation),
            address: decode.grpc_address.clone(),
            prefill: prefill
                .map(|p| v1::PrefillChoice { node_id: p.node_id.clone(), grpc_address: p.grpc_address.clone() })
                .collect(),
        })
    }
}

fn read_member(member: v1::Member) -> Result<(Node, Load), Malformed> {
    let node = Node::try_from(member.info.ok_or(Malformed("info"))?)?;
    Ok((node, member.load.map_or_else(Load::default, Load::from)))
}

fn internal(message: &str) -> v1::Failure {
    v1::Failure { code: "internal".into(), message: message.into(), retryable: false, retry_after_ms: 0 }
}
