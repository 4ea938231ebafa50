{{- define "streamgauge-name" -}}
{{- if contains "streamgauge" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-streamgauge{{ end -}}
{{- end }}

{{- define "streamgauge-selector" -}}
app.kubernetes.io/name: streamgauge
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "streamgauge-image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "streamgauge-workload" -}}
{{ include "streamgauge-name" . }}-{{ eq .Values.mode "gateway" | ternary "gateway" "engine" }}
{{- end }}

{{/* Settings that the proxy reads at its start only. They are flags, so that a change of them replaces the pods. The others
   are in a file, which the proxy reads again when it changes. Injected pods are in namespaces without that file. */}}
{{- define "streamgauge-needs-restart" -}}
upstream_http upstream_ca upstream_cert upstream_key upstream_server_name engine_metrics
tls_cert tls_key tls_client_ca
admin_tls_cert admin_tls_key admin_tls_client_ca admin_token_file admin_metrics_token_file admin_insecure
workers tokenizers max_connections log_format
capture capture_spool capture_flush capture_round capture_tokenizer capture_block capture_key capture_key_rotate
capture_session capture_names capture_sample capture_format capture_keep_bytes capture_keep_age
{{- end }}

{{/* Those settings as flags. Keys of lists that are plural have a flag that is not. */}}
{{- define "streamgauge-flags" -}}
{{- $singular := dict "slos" "slo" "classes" "class" "routes" "route" "tokenizers" "tokenizer" }}
{{- $fixed := regexSplit "\\s+" (include "streamgauge-needs-restart" .) -1 }}
{{- $flags := list }}
{{- range $key, $value := .Values.settings }}
  {{- if or (eq $.Values.mode "injection") (has $key $fixed) }}
    {{- $flag := get $singular $key | default $key | replace "_" "-" }}
    {{- range kindIs "slice" $value | ternary $value (kindIs "invalid" $value | ternary (list) (list $value)) }}
      {{- $flags = append $flags (printf "--%s=%s" $flag (kindIs "string" . | ternary . (toRawJson .))) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- with $flags }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* The other settings as a configuration file. */}}
{{- define "streamgauge-file" -}}
{{- $fixed := regexSplit "\\s+" (include "streamgauge-needs-restart" .) -1 }}
{{- range $key, $value := .Values.settings }}
{{- if not (or (has $key $fixed) (kindIs "invalid" $value)) }}
{{ $key }}: {{ toRawJson $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* The folder of the spool; empty unless the capture goes to a bucket. */}}
{{- define "streamgauge-spool" -}}
{{- if regexMatch "^(s3|gs|az)://" (toString .Values.settings.capture) -}}
{{ .Values.settings.capture_spool | default "/var/lib/streamgauge/spool" }}
{{- end }}
{{- end }}

{{/* The volumes of Streamgauge's container, beside those of other containers of the pod. */}}
{{- define "streamgauge-volumes" -}}
{{- $volumes := list }}
{{- if ne .Values.mode "injection" }}
{{- $volumes = append $volumes (dict "name" "streamgauge-settings" "configMap" (dict "name" (printf "%s-settings" (include "streamgauge-name" .)))) }}
{{- end }}
{{- if include "streamgauge-spool" . }}
{{- $volumes = append $volumes (merge (dict "name" "streamgauge-spool") .Values.spoolVolume) }}
{{- end }}
{{- with .Values.admin.metricsToken }}
{{- if .secret }}
{{- $volumes = append $volumes (dict "name" "streamgauge-token" "secret" (dict "secretName" .secret)) }}
{{- end }}
{{- end }}
{{- with concat $volumes .Values.volumes }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{- define "streamgauge-mounts" -}}
{{- $mounts := list }}
{{- if ne .Values.mode "injection" }}
{{/* The folder: the kubelet does not change a file that is mounted by itself. */}}
{{- $mounts = append $mounts (dict "name" "streamgauge-settings" "mountPath" "/etc/streamgauge/settings" "readOnly" true) }}
{{- end }}
{{- with include "streamgauge-spool" . }}
{{- $mounts = append $mounts (dict "name" "streamgauge-spool" "mountPath" .) }}
{{- end }}
{{- if .Values.admin.metricsToken.secret }}
{{- $mounts = append $mounts (dict "name" "streamgauge-token" "mountPath" "/run/secrets/streamgauge" "readOnly" true) }}
{{- end }}
{{- with concat $mounts .Values.volumeMounts }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{- define "streamgauge-scheme" -}}
{{ .Values.settings.admin_tls_cert | empty | ternary "http" "https" }}
{{- end }}

{{/* A probe of the admin port. */}}
{{- define "streamgauge-probe" -}}
httpGet: {path: {{ .path }}, port: streamgauge{{ if eq (include "streamgauge-scheme" .root) "https" }}, scheme: HTTPS{{ end }}}
{{- end }}

{{/* How Prometheus scrapes a protected admin port. */}}
{{- define "streamgauge-scrape" -}}
{{- if eq (include "streamgauge-scheme" .) "https" }}
scheme: https
{{- with .Values.admin.tlsConfig }}
tlsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with .Values.admin.metricsToken }}
{{- if .secret }}
authorization: {credentials: {name: {{ .secret }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- end }}

{{- define "streamgauge-securityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* The container that forwards and measures, of `root`: it listens on `listen` or else on `port`, forwards to `upstream` or else
   to the original destinations, and drains for `drain`. Clients use `port`. */}}
{{- define "streamgauge-container" -}}
{{- $values := .root.Values -}}
name: streamgauge
image: {{ include "streamgauge-image" .root }}
imagePullPolicy: {{ $values.image.pullPolicy }}
args:
  - proxy
  {{- if ne $values.mode "injection" }}
  - --config=/etc/streamgauge/settings/streamgauge.yaml
  {{- end }}
  - --listen={{ .listen | default (printf "%s:%v" $values.address .port) }}
  # Not loopback: the kubelet and Prometheus ask from outside the pod.
  - --admin={{ $values.address }}:{{ $values.admin.port }}
  {{- with $values.admin.arguments }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if $values.admin.metricsToken.secret }}
  - --admin-metrics-token-file=/run/secrets/streamgauge/{{ $values.admin.metricsToken.key }}
  {{- end }}
  - {{ .upstream | empty | ternary "--transparent" (printf "--upstream=%s" .upstream) }}
  - --drain={{ .drain }}s
  {{- with include "streamgauge-flags" .root }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if and (include "streamgauge-spool" .root) (not $values.settings.capture_spool) }}
  - --capture-spool={{ include "streamgauge-spool" .root }}
  {{- end }}
# Who pushes, where telemetry is pushed: OTEL_EXPORTER_OTLP_ENDPOINT turns that on. A container that starts again is the
# same instance, so that its restarts can be counted.
env:
  {{- with .env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
  - {name: OTEL_RESOURCE_ATTRIBUTES, value: "k8s.pod.name=$(POD_NAME),k8s.namespace.name=$(POD_NAMESPACE),service.instance.id=$(POD_NAMESPACE).$(POD_NAME)"}
  {{- with $values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - {name: {{ .portName | default "http" }}, containerPort: {{ .port }}}
  - {name: streamgauge, containerPort: {{ $values.admin.port }}}
# /livez, since /readyz waits for the server behind the proxy, which may start only after this succeeds.
startupProbe:
  {{- include "streamgauge-probe" (dict "root" .root "path" "/livez") | nindent 2 }}
  periodSeconds: 1
  failureThreshold: 30
# 503 while the server cannot be reached, and when the proxy drains.
readinessProbe:
  {{- include "streamgauge-probe" (dict "root" .root "path" "/readyz") | nindent 2 }}
  periodSeconds: 5
livenessProbe:
  {{- include "streamgauge-probe" (dict "root" .root "path" "/livez") | nindent 2 }}
  periodSeconds: 10
  failureThreshold: 6
securityContext:
  {{- include "streamgauge-securityContext" .root | nindent 2 }}
resources:
  {{- toYaml $values.resources | nindent 2 }}
{{- with include "streamgauge-mounts" .root }}
volumeMounts:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{/* `value` as an expression of CEL: an object of `type`, or a map where `type` is empty. */}}
{{- define "streamgauge-cel" -}}
{{- $type := .type -}}
{{- if kindIs "map" .value -}}
  {{- $fields := list -}}
  {{- range $key, $value := .value -}}
    {{- $of := has $key (list "limits" "requests") | ternary "" (printf "%s.%s" $type $key) -}}
    {{- $cel := include "streamgauge-cel" (dict "value" $value "type" $of) -}}
    {{- $fields = append $fields (printf "%s: %s" ($type | empty | ternary (quote $key) $key) $cel) -}}
  {{- end -}}
  {{ $type }}{ {{- join ", " $fields -}} }
{{- else if kindIs "slice" .value -}}
  {{- $items := list -}}
  {{- range .value -}}
    {{- $items = append $items (include "streamgauge-cel" (dict "value" . "type" $type)) -}}
  {{- end -}}
  [{{ join ", " $items }}]
{{- else -}}
  {{ toRawJson .value }}
{{- end -}}
{{- end }}
