//! The peers' configuration: as many threads each, upstream connections kept alive, no buffering of replies, no access
//! log, long timeouts. Everything else has the program's defaults.

use std::net::SocketAddr;

/// `listen … http2` instead of `http2 on`, which nginx before 1.25 does not know.
pub(crate) fn nginx(listen: SocketAddr, upstream: SocketAddr, threads: u32, http2: bool) -> String {
    let http2 = if http2 { " http2" } else { "" };
    format!(
        "daemon off;
worker_processes {threads};
pid nginx.pid;
error_log stderr error;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  keepalive_requests 1000000000;
  keepalive_timeout 1h;
  upstream model {{
    server {upstream};
    keepalive 256;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
  }}
  server {{
    listen {listen}{http2};
    location / {{
      proxy_pass http://model;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_set_header Host $host;
      proxy_buffering off;
      proxy_read_timeout 1h;
    }}
  }}
}}
"
    )
}

/// `http-reuse aggressive`: an upstream connection serves the next client as soon as it has proven that it is kept.
/// `option http-no-delay`: without it HAProxy holds small chunks back for 200 ms at a time, and does not stream.
pub(crate) fn haproxy(listen: SocketAddr, upstream: SocketAddr, threads: u32, tcp: bool) -> String {
    let mode = if tcp { "mode tcp" } else { "mode http\n  option http-no-delay\n  http-reuse aggressive" };
    format!(
        "global
  nbthread {threads}
  maxconn 4096
defaults
  {mode}
  timeout connect 10s
  timeout client 1h
  timeout server 1h
listen model
  bind {listen}
  server model {upstream}
"
    )
}

pub(crate) fn envoy(listen: SocketAddr, upstream: SocketAddr) -> String {
    let address = |at: SocketAddr| format!("{{socket_address: {{address: {}, port_value: {}}}}}", at.ip(), at.port());
    let (listen, upstream) = (address(listen), address(upstream));
    format!(
        "static_resources:
  listeners:
  - address: {listen}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: model
          stream_idle_timeout: 0s
          route_config:
            virtual_hosts:
            - name: model
              domains: [\"*\"]
              routes:
              - match: {{prefix: /}}
                route: {{cluster: model, timeout: 0s}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: model
    type: STATIC
    load_assignment:
      cluster_name: model
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {upstream}}}
"
    )
}
