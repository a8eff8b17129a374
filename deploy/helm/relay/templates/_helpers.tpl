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

{{- /* The config, with the address at which the probes find it. */}}
{{- define "relay.config" -}}
{{- if hasKey .Values.config "http" }}{{ fail "config.http: the chart sets it, because the probes use it: remove it" }}{{ end }}
{{- mergeOverwrite (deepCopy .Values.config) (dict "http" "0.0.0.0:9400") | toYaml }}
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
- {name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- range $name, $from := .Values.secrets }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $from.secret }}, key: {{ $from.key }}}}
{{- end }}
{{- end }}

{{- define "relay.mounts" -}}
- {name: config, mountPath: /etc/relay/relay.yaml, subPath: relay.yaml, readOnly: true}
- {name: state, mountPath: /var/lib/relay}
- {name: tmp, mountPath: /tmp}
{{- range $name, $secret := .Values.files }}
- {name: {{ printf "file-%s" $name }}, mountPath: /etc/relay/files/{{ $name }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "relay.volumes" -}}
- {name: config, configMap: {name: {{ include "relay.name" . }}}}
- {name: tmp, emptyDir: {}}
{{- range $name, $secret := .Values.files }}
- {name: {{ printf "file-%s" $name }}, secret: {secretName: {{ $secret }}, defaultMode: 0440}}
{{- end }}
{{- end }}

{{- define "relay.probes" -}}
# Red if a shard makes no progress, or a consumer.
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 4
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
# Until it listens: Java and Python may start slowly.
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 3
  timeoutSeconds: 5
  failureThreshold: 100
{{- end }}
