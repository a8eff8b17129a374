{{- define "relay.name" -}}
{{- $name := printf "%s-%s" .Release.Name .Chart.Name }}
{{- ternary .Release.Name $name (contains .Chart.Name .Release.Name) | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "relay.labels" -}}
{{ include "relay.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "relay.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "relay.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "relay.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- /* image: {image: an entry of images, chart: .Chart} */}}
{{- define "relay.image" -}}
{{- if .image.digest }}{{ .image.repository }}@{{ .image.digest }}{{ else }}{{ .image.repository }}:{{ .image.tag | default .chart.AppVersion }}{{ end }}
{{- end }}

{{- /* `http` of the config, without the peers. */}}
{{- define "relay.http" -}}
{{- if hasKey .Values.config "http" }}{{ fail "config.http: the chart sets it, because the probes use it: remove it; for passwords and TLS there is `http` beside `config`" }}{{ end }}
address: "0.0.0.0:9400"
{{- if .Values.http.passwordSecret }}
user: "${RELAY_HTTP_USER}"
password: "${RELAY_HTTP_PASSWORD}"
{{- end }}
{{- if .Values.http.bearerSecret }}
bearer: "${RELAY_HTTP_BEARER}"
{{- end }}
{{- with .Values.http.tls }}
{{- if .secret }}
certificate: /etc/relay/tls/tls.crt
key: /etc/relay/tls/tls.key
{{- if .authority }}
authorities: /etc/relay/tls/{{ .authority }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The config, with the address at which the probes find it, and all whom the status page shows. */}}
{{- define "relay.config" -}}
{{- $name := include "relay.name" . }}
{{- $peers := list }}
{{- range $number := until (int .Values.workers.replicas) }}{{ $peers = append $peers (printf "%s-%d.%s.%s.svc:9400" $name $number $name $.Release.Namespace) }}{{ end }}
{{- range $kind, $own := .Values.consumers }}{{ if $own.enabled }}{{ $peers = append $peers (printf "%s-%s:9410" $name $kind) }}{{ end }}{{ end }}
{{- $http := include "relay.http" . | fromYaml }}
{{- mergeOverwrite (deepCopy .Values.config) (dict "http" (merge $http (dict "peers" $peers))) | toYaml }}
{{- end }}

{{- /* What replaces the pods when it changes. A new number of workers does not. */}}
{{- define "relay.checksum" -}}
{{- printf "%s\n%s" (toYaml .Values.config) (include "relay.http" .) | sha256sum }}
{{- end }}

{{- define "relay.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "relay.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "relay.env" -}}
{{- range $name, $value := .Values.env }}
- {name: {{ $name | quote }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- range $name, $from := .Values.secrets }}
- name: {{ $name | quote }}
  valueFrom: {secretKeyRef: {name: {{ $from.secret | quote }}, key: {{ $from.key | quote }}}}
{{- end }}
{{- with .Values.http.passwordSecret }}
- name: RELAY_HTTP_USER
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: username}}
- name: RELAY_HTTP_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: password}}
{{- end }}
{{- with .Values.http.bearerSecret }}
- name: RELAY_HTTP_BEARER
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: token}}
{{- end }}
{{- end }}

{{- define "relay.mounts" -}}
- {name: config, mountPath: /etc/relay/relay.yaml, subPath: relay.yaml, readOnly: true}
- {name: state, mountPath: /var/lib/relay}
- {name: tmp, mountPath: /tmp}
{{- range $name, $secret := .Values.files }}
- {name: {{ printf "file-%s" $name }}, mountPath: /etc/relay/files/{{ $name }}, readOnly: true}
{{- end }}
{{- if .Values.http.tls.secret }}
- {name: tls, mountPath: /etc/relay/tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "relay.volumes" -}}
- {name: config, configMap: {name: {{ include "relay.name" . }}}}
- {name: tmp, emptyDir: {}}
{{- range $name, $secret := .Values.files }}
- {name: {{ printf "file-%s" $name }}, secret: {secretName: {{ $secret | quote }}, defaultMode: 0440}}
{{- end }}
{{- with .Values.http.tls.secret }}
- {name: tls, secret: {secretName: {{ . | quote }}, defaultMode: 0440}}
{{- end }}
{{- end }}

{{- define "relay.probes" -}}
{{- $scheme := ternary "HTTPS" "HTTP" (ne .Values.http.tls.secret "") }}
# Red only where a restart may help: not while a database or a store is down, or one source would stop the others.
livenessProbe:
  httpGet: {path: /livez, port: http, scheme: {{ $scheme }}}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 4
readinessProbe:
  httpGet: {path: /readyz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 5
# Until it listens: Java and Python may start slowly.
startupProbe:
  httpGet: {path: /livez, port: http, scheme: {{ $scheme }}}
  periodSeconds: 3
  timeoutSeconds: 5
  failureThreshold: 100
{{- end }}
