{{- define "weir.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-weir" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- /* The job of the alert rules is app.kubernetes.io/name. */ -}}
{{- define "weir.selector" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "weir.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* weir.yaml: the configuration, with the metrics of the chart. */ -}}
{{- define "weir.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if and .Values.metrics.port (not (hasKey $config "metrics")) -}}
{{- $_ := set $config "metrics" (dict "listen" (printf ":%d" (int .Values.metrics.port))) -}}
{{- end -}}
{{ toYaml $config }}
{{- end }}
