{{/* The Job that ends when the run does. docs/decisions/run-as-a-job.md says why it is beside the GPS. */}}

{{/* The Job of this run, as JSON: {name, spec, isOver}. Another run has another Job. A Job's pods cannot be changed, so an
     upgrade keeps the Job that the run's GPS has already labelled, as it is. */}}
{{- define "fedstrata.run" -}}
{{- $run := list (include "fedstrata.experiment" .) .Values.again (include "fedstrata.tlsMode" .) | toJson | sha256sum | trunc 8 -}}
{{- $prefix := printf "%s-%s" (include "fedstrata.fullname" .) $run -}}
{{- $spec := fromYaml (include "fedstrata.runSpec" .) -}}
{{- $found := dict "name" (printf "%s%s" $prefix (toJson $spec | sha256sum | trunc 4)) "spec" $spec "isOver" false -}}
{{- range (lookup "batch/v1" "Job" .Release.Namespace "").items -}}
  {{- $phase := get (.metadata.labels | default dict) "fedstrata.io/phase" -}}
  {{- if and $phase (hasPrefix $prefix .metadata.name) -}}
    {{- $pod := dict "metadata" $spec.template.metadata "spec" .spec.template.spec -}}
    {{- $kept := merge (dict "template" $pod) (pick .spec "backoffLimit" "podFailurePolicy") -}}
    {{- $found = dict "name" .metadata.name "spec" $kept "isOver" (has $phase (list "completed" "failed")) -}}
  {{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/* Lost pods are replaced. A failed run ends the Job: at once from Kubernetes 1.29 on, in earlier versions after three more pods. */}}
{{- define "fedstrata.runSpec" -}}
{{- if include "fedstrata.since" (dict "root" . "version" "1.29") }}
backoffLimit: 1000
podFailurePolicy:
  rules:
    - action: FailJob
      onExitCodes: {containerName: run, operator: In, values: [4]}
    - action: Ignore
      onPodConditions:
        - {type: DisruptionTarget, status: "True"}
{{- else }}
backoffLimit: 3
{{- end }}
template:
  metadata:
    labels:
      {{- include "fedstrata.selectorLabels" (dict "root" . "component" "run") | nindent 6 }}
  spec:
    terminationGracePeriodSeconds: 1
    {{- include "fedstrata.askingPod" (dict "root" . "component" "run" "module" "gps.kubernetes.job") | nindent 4 }}
{{- end }}

{{/* The spec of a pod that only calls the GPS: (dict "root" $ "component" "test" "module" "gps.probe" "options" LIST). */}}
{{- define "fedstrata.askingPod" -}}
{{- $root := .root -}}
restartPolicy: Never
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
securityContext:
  {{- include "fedstrata.podSecurityContext" . | nindent 2 }}
{{- with $root.Values.gps.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.gps.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: {{ .component }}
    image: {{ include "fedstrata.image" (dict "root" $root "component" "gps") | quote }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    command: [python3, -m, {{ .module }}]
    args:
      - --gps={{ include "fedstrata.gpsAddress" $root }}
      {{- range .options }}
      - {{ . }}
      {{- end }}
      {{- if include "fedstrata.tls" $root }}
      - --tls=/tls
      {{- end }}
    {{- if eq .component "run" }}
    env:
      # The Job's own name, because the GPS of the previous run may still answer.
      - name: FEDSTRATA_JOB
        valueFrom:
          fieldRef:
            fieldPath: metadata.labels['job-name']
    {{- end }}
    resources:
      requests: {cpu: 50m, memory: 64Mi, ephemeral-storage: 16Mi}
      limits: {cpu: 500m, memory: 256Mi, ephemeral-storage: 256Mi}
    securityContext:
      {{- toYaml $root.Values.containerSecurityContext | nindent 6 }}
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
      - name: tmp
        mountPath: /tmp
      {{- with include "fedstrata.tlsMount" . | trim }}
      {{- . | nindent 6 }}
      {{- end }}
volumes:
  - name: tmp
    emptyDir: {sizeLimit: 64Mi}
  {{- with include "fedstrata.tlsVolume" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The label by which Kueue puts a workload into a queue. */}}
{{- define "fedstrata.queueLabel" -}}
{{- with .Values.queue.name }}
kueue.x-k8s.io/queue-name: {{ . | quote }}
{{- end }}
{{- end }}
